# SPDX-License-Identifier: Apache-2.0
"""What an MLP is: spec, weights, file formats, and a repository of versions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.loader import load
from fused_mlp.models.repository import FoundModel, FoundVersion, Repository
from fused_mlp.models.spec import Activation, Dtype, LayerSpec, MlpSpec, OutputActivation
from fused_mlp.models.version_directory import save
from fused_mlp.models.weights import LayerWeights, Mlp

if TYPE_CHECKING:
    from fused_mlp.models.importers.from_checkpoint import from_safetensors, from_state_dict
    from fused_mlp.models.importers.from_onnx import from_onnx
    from fused_mlp.models.importers.from_torch import from_torch

__all__ = [
    "Activation",
    "Dtype",
    "FoundModel",
    "FoundVersion",
    "LayerSpec",
    "LayerWeights",
    "Mlp",
    "MlpSpec",
    "ModelLoadError",
    "OutputActivation",
    "Repository",
    "from_onnx",
    "from_safetensors",
    "from_state_dict",
    "from_torch",
    "load",
    "save",
]

# Imported on first use: a server needs none of them, and from_torch imports torch.
_IMPORTERS = {
    "from_onnx": "from_onnx",
    "from_safetensors": "from_checkpoint",
    "from_state_dict": "from_checkpoint",
    "from_torch": "from_torch",
}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.importers.{_IMPORTERS[name]}"), name)
