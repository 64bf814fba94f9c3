"""Compiles a launch plan to machine code for an architecture, with or without a GPU. What serves, the check and
`fused-mlp warm` all compile here, so that they find each other's binaries in Triton's cache."""

from __future__ import annotations

from collections.abc import Mapping

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fused_mlp.kernels.cuda.device import KERNELS
from fused_mlp.kernels.cuda.planning.plans import LaunchPlan


def compile_plan(
    plan: LaunchPlan, options: Mapping[str, int | None], capability: int
) -> triton.compiler.CompiledKernel:
    """For 16-byte aligned pointers and a 32-bit row count."""
    kernel = KERNELS[plan.kernel]
    names = [name for name in kernel.arg_names if name not in plan.constants]
    types = [f"*{element}" for element in plan.pointers] + ["i32"] * (len(names) - len(plan.pointers))
    assert kernel.arg_names[: len(names)] == names  # launches pass them in this order, then the constants
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(plan.constants, "constexpr")
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(len(plan.pointers))}
    return triton.compile(
        ASTSource(kernel, signature, dict(plan.constants), aligned),
        target=GPUTarget("cuda", capability, 32),
        options=dict(options),
    )
