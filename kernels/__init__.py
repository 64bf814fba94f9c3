"""How an MLP runs: `compile(mlp)` picks the best kernel for a variant and a device."""

from kernels import cpu as _native  # noqa: F401 - registers its backend
from kernels import unfused as _unfused  # noqa: F401 - registers its backends
from kernels.base import Kernel, KernelInfo, Variant
from kernels.errors import KernelError, KernelInputError, KernelUnavailable
from kernels.registry import Backend, backends, compile, register

__all__ = [
    "Backend",
    "Kernel",
    "KernelError",
    "KernelInfo",
    "KernelInputError",
    "KernelUnavailable",
    "Variant",
    "backends",
    "compile",
    "register",
]
