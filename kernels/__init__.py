"""How an MLP runs: `compile(mlp)` picks the best kernel for a variant and a device."""

from kernels import cpu as _native  # noqa: F401 - registers its backend
from kernels import torch_fused as _torch_fused  # noqa: F401 - registers its backend
from kernels import unfused as _unfused  # noqa: F401 - registers its backends
from kernels.base import Kernel, KernelInfo, Variant
from kernels.cuda import backend as _cuda  # noqa: F401 - registers its backends, without importing triton
from kernels.errors import KernelError, KernelInputError, KernelRefuted, KernelUnavailable
from kernels.fused_module import FusedMLP
from kernels.registry import Backend, backends, compile, register

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
    "register",
]
