# SPDX-License-Identifier: Apache-2.0
"""fused-mlp: serve multi-layer perceptrons, each compiled into one fused kernel.

Everything here is imported on first use: `import fused_mlp` takes milliseconds and imports neither torch, grpc nor
numpy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fused_mlp.kernels import (
        FusedMLP,
        KernelError,
        KernelInputError,
        KernelRefuted,
        KernelUnavailable,
        compile,  # noqa: A004 - as torch.compile
        fuse_mlps,
    )
    from fused_mlp.models import (
        Mlp,
        MlpSpec,
        ModelLoadError,
        from_onnx,
        from_safetensors,
        from_state_dict,
        from_torch,
        load,
        save,
        split,
    )
    from fused_mlp.service.client import AsyncClient, Client, PredictError, RetryPolicy, Tls
    from fused_mlp.service.local.serving import serve

    __version__: str

__all__ = [
    "AsyncClient",
    "Client",
    "FusedMLP",
    "KernelError",
    "KernelInputError",
    "KernelRefuted",
    "KernelUnavailable",
    "Mlp",
    "MlpSpec",
    "ModelLoadError",
    "PredictError",
    "RetryPolicy",
    "Tls",
    "__version__",
    "compile",
    "from_onnx",
    "from_safetensors",
    "from_state_dict",
    "from_torch",
    "fuse_mlps",
    "load",
    "save",
    "serve",
    "split",
]

_HOMES = {
    "kernels": (
        "FusedMLP",
        "KernelError",
        "KernelInputError",
        "KernelRefuted",
        "KernelUnavailable",
        "compile",
        "fuse_mlps",
    ),
    "models": (
        "Mlp",
        "MlpSpec",
        "ModelLoadError",
        "from_onnx",
        "from_safetensors",
        "from_state_dict",
        "from_torch",
        "load",
        "save",
        "split",
    ),
    "service.client": ("AsyncClient", "Client", "PredictError", "RetryPolicy", "Tls"),
    "service.local.serving": ("serve",),
}
_SUBPACKAGES = ("kernels", "models", "protos", "service")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("fused-mlp")
    if name in _SUBPACKAGES:
        return import_module(f"fused_mlp.{name}")
    for home, names in _HOMES.items():
        if name in names:
            try:
                return getattr(import_module(f"fused_mlp.{home}"), name)
            except ModuleNotFoundError as error:
                missing = (error.name or "").partition(".")[0]
                command = import_module("fused_mlp.service.missing").installer(missing)
                if command is None:
                    raise
                raise ImportError(f"fused_mlp.{name} needs {missing}: {command}") from error
    raise AttributeError(f"module 'fused_mlp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES])
