"""What an MLP is: spec, weights, file formats, and a repository of versions."""

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.from_checkpoint import from_safetensors, from_state_dict
from fused_mlp.models.importers.from_onnx import from_onnx
from fused_mlp.models.importers.from_torch import from_torch, parameter_names
from fused_mlp.models.loader import load
from fused_mlp.models.native_format import save
from fused_mlp.models.repository import FoundModel, FoundVersion, Repository
from fused_mlp.models.spec import Activation, Dtype, LayerSpec, MlpSpec, OutputActivation
from fused_mlp.models.weights import LayerWeights, Mlp

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
    "parameter_names",
    "save",
]
