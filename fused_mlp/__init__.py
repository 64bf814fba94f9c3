"""fused-mlp: serve multi-layer perceptrons, each compiled into one fused kernel.

Everything here is imported on first use, so that `import fused_mlp` costs milliseconds and needs neither torch
nor grpc."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fused_mlp.kernels import FusedMLP, compile  # noqa: A004 - as torch.compile
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
    )
    from fused_mlp.service.client import AsyncClient, Client

_HOMES = {
    "AsyncClient": "service.client",
    "Client": "service.client",
    "FusedMLP": "kernels",
    "Mlp": "models",
    "MlpSpec": "models",
    "ModelLoadError": "models",
    "compile": "kernels",
    "from_onnx": "models",
    "from_safetensors": "models",
    "from_state_dict": "models",
    "from_torch": "models",
    "load": "models",
    "save": "models",
}


__all__ = [
    "AsyncClient",
    "Client",
    "FusedMLP",
    "Mlp",
    "MlpSpec",
    "ModelLoadError",
    "compile",
    "from_onnx",
    "from_safetensors",
    "from_state_dict",
    "from_torch",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fused_mlp' has no attribute {name!r}")
    return getattr(import_module(f"fused_mlp.{home}"), name)
