# SPDX-License-Identifier: Apache-2.0
"""What an MLP is: spec, weights, file formats, and a repository of versions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fused_mlp.models.errors import ModelLoadError
    from fused_mlp.models.importers.from_checkpoint import from_safetensors, from_state_dict
    from fused_mlp.models.importers.from_onnx import from_onnx
    from fused_mlp.models.importers.from_torch import from_torch
    from fused_mlp.models.program.spec import Activation, Dtype, LayerSpec, MlpSpec, OutputActivation
    from fused_mlp.models.repository.loader import load
    from fused_mlp.models.repository.repository import FoundModel, FoundVersion, Repository
    from fused_mlp.models.repository.version_directory import save
    from fused_mlp.models.towers import Towers, split
    from fused_mlp.models.weights.mlp import LayerWeights, Mlp

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
    "Towers",
    "from_onnx",
    "from_safetensors",
    "from_state_dict",
    "from_torch",
    "load",
    "save",
    "split",
]

# Imported on first use: a server needs no importer, from_torch imports torch, and the sandbox of an import must be in
# place before numpy starts its threads.
_HOMES = {
    "errors": ("ModelLoadError",),
    "towers": ("Towers", "split"),
    "importers.from_checkpoint": ("from_safetensors", "from_state_dict"),
    "importers.from_onnx": ("from_onnx",),
    "importers.from_torch": ("from_torch",),
    "repository.loader": ("load",),
    "repository.repository": ("FoundModel", "FoundVersion", "Repository"),
    "program.spec": ("Activation", "Dtype", "LayerSpec", "MlpSpec", "OutputActivation"),
    "repository.version_directory": ("save",),
    "weights.mlp": ("LayerWeights", "Mlp"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
