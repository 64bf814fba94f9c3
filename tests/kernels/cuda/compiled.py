# SPDX-License-Identifier: Apache-2.0
"""Launch plans executed as compiled PTX, by the interpreter in tests/support/ptx: a stand-in for
`triton_programs.Binary.launch`. Needs no GPU and no ptxas."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend

from fused_mlp.kernels.cuda.device import KERNELS
from fused_mlp.kernels.cuda.device.compiling import source_of
from fused_mlp.kernels.cuda.planning.plans import LaunchPlan
from tests.support.ptx import Memory, run


@dataclass(frozen=True)
class Binary:
    """`shared` as Triton tells the driver."""

    ptx: str
    name: str
    shared: int
    warps: int


def compile_to_ptx(plan: LaunchPlan, capability: int) -> Binary:
    """As `compiling.compile_plan` does, up to the PTX: what ptxas makes of it takes half of the time."""
    target = GPUTarget("cuda", capability, 32)
    source, chosen = source_of(plan, plan.options[0], capability)
    backend = make_backend(target)
    options = backend.parse_options(chosen)
    stages: dict[str, object] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    metadata = {"target": target, **options.__dict__}
    module = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    for stage, make in stages.items():
        module = make(module, metadata)  # type: ignore[operator]
        if stage == "ptx":
            break
    return Binary(str(module), metadata["name"], metadata["shared"], metadata["num_warps"])


class PtxLauncher:
    """`launch` for one architecture. Compiles each plan once."""

    def __init__(self, capability: int) -> None:
        self._capability = capability
        self._binaries: dict[object, Binary] = {}

    def binary(self, plan: LaunchPlan) -> Binary:
        key = (plan.kernel, plan.pointers, repr(sorted(plan.constants.items())), repr(plan.options))
        if key not in self._binaries:
            self._binaries[key] = compile_to_ptx(plan, self._capability)
        return self._binaries[key]

    def __call__(self, plan: LaunchPlan, rows: int, *arguments: torch.Tensor | int) -> None:
        if not plan.grid(rows):
            return
        binary = self.binary(plan)
        memory = Memory()
        mapped: set[int] = set()
        between: set[int] = set()  # not the model's own
        passed = b""
        names = KERNELS[plan.kernel].arg_names
        for name, argument in zip(names, arguments, strict=False):
            if isinstance(argument, torch.Tensor):
                storage = argument.untyped_storage()
                if storage.data_ptr() not in mapped and storage.nbytes():
                    mapped.add(memory.add_host(storage.data_ptr(), storage.nbytes()))
                if name not in ("w_ptr", "b_ptr"):
                    between.add(storage.data_ptr())
                passed += struct.pack("<Q", argument.data_ptr())
            else:
                passed += struct.pack("<i", argument)
        grid, block = (plan.grid(rows), 1, 1), (32 * binary.warps, 1, 1)
        unsettled = frozenset(between if plan.overlaps(self._capability) else ())
        run(binary.ptx, binary.name, grid, block, binary.shared, passed, memory, unsettled=unsettled)
