"""What an MLP is: spec, weights, file formats, and a repository of versions."""

from models.errors import ModelLoadError
from models.from_checkpoint import from_safetensors, from_state_dict
from models.from_onnx import from_onnx
from models.from_torch import from_torch, parameter_names
from models.loader import load
from models.native_format import save
from models.repository import FoundModel, FoundVersion, Repository
from models.spec import Activation, Dtype, LayerSpec, MlpSpec, OutputActivation
from models.weights import LayerWeights, Mlp

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
