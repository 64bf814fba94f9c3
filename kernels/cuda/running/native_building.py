# SPDX-License-Identifier: Apache-2.0
"""Kernels with the native launcher: of the program that torch's runtime has checked, timed and chosen; and, where torch
sees no GPU but NVIDIA's driver does, of the first tile, in the rule's order, that passes the checks. Runs on the
loading thread."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import numpy as np

from fused_mlp.kernels.base import Kernel, KernelInfo
from fused_mlp.kernels.cuda.planning.architectures import Architecture
from fused_mlp.kernels.cuda.planning.forward import ForwardPlan, plan_forward
from fused_mlp.kernels.cuda.planning.launch_counts import eager_launches
from fused_mlp.kernels.cuda.planning.plans import precision_of
from fused_mlp.kernels.cuda.planning.tiles import Tile
from fused_mlp.kernels.cuda.running import native
from fused_mlp.kernels.cuda.running.kernel import CudaKernel
from fused_mlp.kernels.cuda.running.on_device import run_on_device
from fused_mlp.kernels.cuda.running.packing import pack
from fused_mlp.kernels.cuda.tf32 import multiplies_in_tf32
from fused_mlp.kernels.errors import KernelError
from fused_mlp.kernels.selfcheck import check_against_float64
from fused_mlp.models import Mlp
from fused_mlp.models.program.inputs import spread_ids

if TYPE_CHECKING:
    from fused_mlp.kernels.cuda.running.triton_programs import TritonProgram

log = logging.getLogger(__name__)

# One launch on mapped memory, two blocks of the smallest tiles and a row, a graph with copies, and a larger one. All of
# them in one call are two parts, on two streams.
PROBE_ROWS = (1, 33, 200, 791)


def with_native_launcher(kernel: CudaKernel) -> Kernel:
    """The kernel's program behind the native launcher, with the same tensors; the kernel itself where that cannot be.
    `describe().reason` says which one it is."""
    runtime, info = kernel._runtime, kernel.describe()
    why = native.unavailable() if hasattr(kernel._program, "binaries") else "it has no plan to hand over"
    if not why and runtime.device.type == "cuda":
        program = cast("TritonProgram", kernel._program)
        runtime.settle()  # weights and constants are there before another stream reads them
        try:
            handed_over = native.hand_over(
                kernel.spec,
                replace(info, reason=f"{info.reason}; {native.LAUNCHER}"),
                runtime.device.index or 0,
                program.forward,
                binaries=[binary.compiled for binary in program.binaries],
                tensors=program.tensors,
                on_device=partial(run_on_device, runtime, program, kernel._buckets),
            )
            # Other launches than those that the runtime has checked and replayed.
            check_invariance(handed_over)
            handed_over.replay_graphs()
            return handed_over
        except KernelError as error:
            log.warning("Python launches %s: %s", info.strategy, error)
            why = str(error)
    kernel._info = replace(info, reason=f"{info.reason}; launched from Python ({why})")
    return kernel


def build_by_rule(
    mlp: Mlp, ordinal: int, architecture: Architecture, tiles: list[Tile]
) -> native.NativeKernel:
    """Not timed: torch's runtime, which times, has nothing to run here. Raises KernelError if no tile can serve."""
    precision = precision_of(mlp.spec, multiplies_in_tf32())
    info = KernelInfo(
        variant="fused",
        backend="triton",
        device=f"cuda:{ordinal}",
        strategy="",
        isa=architecture.name,
        dtype="tf32" if precision == "tf32" else mlp.spec.dtype,
        threads=1,
    )
    # Not the table's: code for sm_100 does not run on an sm_103, whose tiles it has.
    capability = native.open_device(ordinal).capability
    out: list[str] = []
    for tile in tiles:
        forward = plan_forward(mlp.spec, tile)
        launches = f"launches per forward: {len(forward.launches)}, eager {eager_launches(mlp.spec)}"
        passed_over = f"; out: {'; '.join(out)}" if out else ""
        reason = f"chosen by rule, not timed{passed_over}; {launches}; {native.LAUNCHER}"
        try:
            binaries = compile_forward(forward, capability)
            tensors = native.upload(ordinal, pack(mlp, forward))
            told = replace(info, strategy=tile.label, reason=reason)
            kernel = native.hand_over(mlp.spec, told, ordinal, forward, binaries=binaries, tensors=tensors)
            check_against_float64(kernel, mlp)
            check_invariance(kernel)
        except KernelError as error:
            out.append(f"{tile.label} ({error})")
            continue
        log.info("%s", kernel.describe())
        return kernel
    raise KernelError(f"no strategy can run this model: {'; '.join(out)}")


def compile_forward(forward: ForwardPlan, capability: int) -> list[object]:
    """Triton's CompiledKernels of the launches, with the plan's first options: how much a kernel spills is known only
    where torch has loaded it. Needs no GPU."""
    from fused_mlp.kernels.cuda.device.compiling import compile_plan  # noqa: PLC0415 - imports triton

    return [compile_plan(each.plan, each.plan.options[0], capability) for each in forward.launches]


def check_invariance(kernel: native.NativeKernel) -> None:
    """A row's bits may not depend on the rows beside it: one call against calls of other sizes."""
    rows = sum(PROBE_ROWS)
    x = np.random.default_rng(1).standard_normal((rows, kernel.spec.in_features), dtype=np.float32)
    spread_ids(kernel.spec.record, x)
    whole = np.empty((rows, kernel.spec.out_features), np.float32)
    kernel.run(x, whole)
    parts = np.empty_like(whole)
    for first, count in zip(accumulate(PROBE_ROWS, initial=0), PROBE_ROWS, strict=False):
        part = slice(first, first + count)
        kernel.run(x[part], parts[part])
    if not np.array_equal(whole.view(np.int32), parts.view(np.int32)):
        raise KernelError("a row's result depends on the rows beside it")
