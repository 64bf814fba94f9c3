# SPDX-License-Identifier: Apache-2.0
"""How an MLP runs: `compile(mlp)` picks the best kernel for a variant and a device. Imports no torch by itself."""

from typing import TYPE_CHECKING, Any

from fused_mlp.kernels.base import Kernel, KernelInfo
from fused_mlp.kernels.errors import KernelError, KernelInputError, KernelRefuted, KernelUnavailable
from fused_mlp.kernels.registry import Backend, backends, compile, register
from fused_mlp.variant import Variant

if TYPE_CHECKING:
    from fused_mlp.kernels.nn.fuse import fuse_mlps
    from fused_mlp.kernels.nn.fused_module import FusedMLP

__all__ = [
    "Backend",
    "FusedMLP",
    "Kernel",
    "KernelError",
    "KernelInfo",
    "KernelInputError",
    "KernelRefuted",
    "KernelUnavailable",
    "Variant",
    "backends",
    "compile",
    "fuse_mlps",
    "register",
]


def __getattr__(name: str) -> Any:
    if name == "FusedMLP":
        from fused_mlp.kernels.nn.fused_module import FusedMLP  # noqa: PLC0415 - brings torch

        return FusedMLP
    if name == "fuse_mlps":
        from fused_mlp.kernels.nn.fuse import fuse_mlps  # noqa: PLC0415 - brings torch

        return fuse_mlps
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
