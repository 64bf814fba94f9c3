"""What an MLP is: spec, weights, file formats, and a repository of versions."""

from models.errors import ModelLoadError
from models.spec import Activation, Dtype, LayerSpec, MlpSpec, OutputActivation
from models.weights import LayerWeights, Mlp

__all__ = [
    "Activation",
    "Dtype",
    "LayerSpec",
    "LayerWeights",
    "Mlp",
    "MlpSpec",
    "ModelLoadError",
    "OutputActivation",
]
