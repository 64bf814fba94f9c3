# SPDX-License-Identifier: Apache-2.0
"""An interpreter of the PTX that Triton and nvcc make for our kernels, in numpy. It executes what is compiled,
without a GPU, and refuses what a GPU would punish: accesses out of bounds or misaligned, races between warps, copies
and products that were not waited for. Instructions that our kernels do not contain are unknown to it, and raise."""

from tests.support.ptx.errors import BadAccess, PtxError, Race, Stuck, UnknownInstruction
from tests.support.ptx.launching import run
from tests.support.ptx.memory import Memory

__all__ = ["BadAccess", "Memory", "PtxError", "Race", "Stuck", "UnknownInstruction", "run"]
