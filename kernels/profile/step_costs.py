# SPDX-License-Identifier: Apache-2.0
"""The least cost of each step of a program, and its measured cost in the fused kernel."""

from __future__ import annotations

from collections.abc import Mapping

from fused_mlp.kernels.fusion import FusedStep, Product, fuse
from fused_mlp.kernels.profile.machine import Limits
from fused_mlp.kernels.profile.results import StepCost
from fused_mlp.kernels.work import Work
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import Step


def step_costs(
    spec: MlpSpec, work: Work, batch: int, limits: Limits, times: Mapping[str, float]
) -> list[StepCost]:
    """`work` and `limits` are of the fused kernel. `times`: microseconds in it, by the name of a step. Products that
    run as one (`pi, v`) are told at the first of them."""
    times = {name.partition(", ")[0]: us for name, us in times.items()}
    works = {each.name: each for each in work.steps}
    costs = []
    for fused in fuse(spec):
        steps = _steps(fused)
        flops = batch * sum(works[step.name].flops for step in steps)
        weight_bytes = sum(works[step.name].weight_bytes for step in steps)
        int8_flops = batch * sum(works[step.name].int8_flops for step in steps)
        limit_us = 1e6 * max(limits.compute_s(flops, int8_flops), weight_bytes / limits.bytes_per_s)
        found = [times[step.name] for step in steps if step.name in times]
        what = " ".join(step.describe() for step in steps)
        costs.append(
            StepCost(
                batch,
                steps[0].name,
                what,
                flops,
                weight_bytes,
                limit_us,
                sum(found) if found else None,
                works[steps[0].name].precision,
            )
        )
    return costs


def _steps(fused: FusedStep) -> tuple[Step, ...]:
    return fused.steps if isinstance(fused, Product) else (fused,)
