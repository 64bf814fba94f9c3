"""How an MLP runs: `compile(mlp)` picks the best kernel for a variant and a device."""

from fused_mlp.kernels.backends import cpu as _native  # noqa: F401 - registers its backend
from fused_mlp.kernels.backends import eager as _unfused  # noqa: F401 - registers its backends
from fused_mlp.kernels.backends import torch as _torch_fused  # noqa: F401 - registers its backend
from fused_mlp.kernels.base import Kernel, KernelInfo, Variant
from fused_mlp.kernels.cuda import backend as _cuda  # noqa: F401 - registers its backends, without importing triton
from fused_mlp.kernels.cuda.backend import use_kernel_cache
from fused_mlp.kernels.errors import KernelError, KernelInputError, KernelRefuted, KernelUnavailable
from fused_mlp.kernels.nn.fused_module import FusedMLP
from fused_mlp.kernels.registry import Backend, backends, compile, register

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
    "use_kernel_cache",
]
