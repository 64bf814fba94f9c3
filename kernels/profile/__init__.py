# SPDX-License-Identifier: Apache-2.0
"""Where a forward pass spends its time, eager, compiled and fused: timed, counted in the profiler's events, and
compared with the limits of the machine. Prints nothing; service/reports/profile shows the result."""

from fused_mlp.kernels.profile.expectation import Difference, compare, parse_expectation
from fused_mlp.kernels.profile.results import PROFILED, Point, Profile, ProfileError, StepCost, VariantName
from fused_mlp.kernels.profile.run import Options, profile
from fused_mlp.kernels.profile.shapes import random_mlp
from fused_mlp.kernels.profile.sweep import Sweep, SweepCell, equally_wide, run_sweep

__all__ = [
    "PROFILED",
    "Difference",
    "Options",
    "Point",
    "Profile",
    "ProfileError",
    "StepCost",
    "Sweep",
    "SweepCell",
    "VariantName",
    "compare",
    "equally_wide",
    "parse_expectation",
    "profile",
    "random_mlp",
    "run_sweep",
]
