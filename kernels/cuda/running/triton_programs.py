# SPDX-License-Identifier: Apache-2.0
"""A Triton strategy as a program: packed weights on a device, machine code for it, and `enqueue`, which launches the
plan on the buffers it is given, also under graph capture. The only module besides the kernels themselves and the check
that imports triton."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from fused_mlp.kernels.cuda.device import KERNELS
from fused_mlp.kernels.cuda.device.compiling import compile_plan, load
from fused_mlp.kernels.cuda.planning.forward import Argument, plan_forward
from fused_mlp.kernels.cuda.planning.plans import LaunchPlan
from fused_mlp.kernels.cuda.planning.tiles import Tile
from fused_mlp.kernels.cuda.running.packing import pack
from fused_mlp.kernels.cuda.running.program import Allocate
from fused_mlp.models import Mlp

SCRATCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class TritonProgram:
    """`forward`, `tensors` and `binaries` are all that another launcher needs of it."""

    any_rows = True

    def __init__(self, mlp: Mlp, tile: Tile, device: torch.device) -> None:
        self.label = tile.label
        self.forward = plan_forward(mlp.spec, tile)
        self.launches = self.forward.max_launches
        self.tensors = [tensor.to(device) for tensor in pack(mlp, self.forward)]
        self.binaries = [Binary(each.plan, device) for each in self.forward.launches]

    @property
    def memory_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def workspace(self, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
        return tuple(
            allocate((min(rows, each.max_rows), each.row), SCRATCH_DTYPES[each.element])
            for each in self.forward.scratch
        )

    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        buffers = (x, y, *workspace)

        def value(argument: Argument) -> Tensor | int:
            if argument.kind == "rows":
                return rows
            return (buffers if argument.kind == "buffer" else self.tensors)[argument.index]

        for each, binary in zip(self.forward.launches, self.binaries, strict=True):
            binary.launch(rows, *map(value, each.arguments))


class Binary:
    """Machine code of one plan for one device, compiled (or found in Triton's cache) with the first launch."""

    def __init__(self, plan: LaunchPlan, device: torch.device) -> None:
        self._plan = plan
        self._device = device
        self._compiled: Any = None

    @property
    def compiled(self) -> Any:
        """Triton's CompiledKernel: `asm["cubin"]`, and `metadata` with `name`, `shared` and `num_warps`. Of the plan's
        options, with those with which the kernel spills least."""
        if self._compiled is None:
            major, minor = torch.cuda.get_device_capability(self._device)
            found: dict[int, Any] = {}
            for options in self._plan.options:
                compiled = compile_plan(self._plan, options, 10 * major + minor)
                spills = load(compiled)
                found.setdefault(spills, compiled)
                if not spills:
                    break
            self._compiled = found[min(found)]
        return self._compiled

    def launch(self, rows: int, *arguments: Tensor | int) -> None:
        kernel, grid = KERNELS[self._plan.kernel], self._plan.grid(rows)
        if not grid:
            return
        if not isinstance(kernel, JITFunction):  # Triton's interpreter, which compiles nothing
            kernel[(grid,)](*arguments, **self._plan.constants_for(0))
        else:
            self.compiled[(grid, 1, 1)](*arguments, *[None] * len(self._plan.constants))
