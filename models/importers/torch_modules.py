"""An MLP as torch modules: one table from activation names to modules, the gated layer, and `Mlp.to_torch`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from fused_mlp.models.dtypes import Array
from fused_mlp.models.importers.torch_tensors import to_tensor
from fused_mlp.models.spec import DEFAULT_SLOPE, OutputActivation
from fused_mlp.models.weights import Mlp

_MODULES: dict[OutputActivation, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "hardswish": nn.Hardswish,
    "relu6": nn.ReLU6,
    "mish": nn.Mish,
    "softmax": lambda: nn.Softmax(dim=-1),
    "log_softmax": lambda: nn.LogSoftmax(dim=-1),
}


def activation_module(name: OutputActivation, negative_slope: float = DEFAULT_SLOPE) -> nn.Module:
    """A fresh module for an activation of the spec."""
    if name == "leaky_relu":
        return nn.LeakyReLU(negative_slope)
    return _MODULES[name]()


class GatedLinear(nn.Module):
    """activation(gate_proj(x)) * up_proj(x): the first half of a GeGLU, SwiGLU or ReGLU block."""

    def __init__(self, gate_proj: nn.Linear, up_proj: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.gate_proj = gate_proj
        self.up_proj = up_proj
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        gated: Tensor = self.activation(self.gate_proj(x)) * self.up_proj(x)
        return gated


def make_module(mlp: Mlp) -> nn.Module:
    """What `Mlp.to_torch` returns."""
    modules: list[nn.Module] = []
    for layer, weights in zip(mlp.spec.layers, mlp.layers, strict=True):
        activation = activation_module(layer.activation, layer.negative_slope)
        if layer.gated:
            assert weights.gate_weight is not None
            modules.append(
                GatedLinear(
                    gate_proj=_linear(weights.gate_weight, weights.gate_bias),
                    up_proj=_linear(weights.weight, weights.bias),
                    activation=activation,
                )
            )
            continue
        modules.append(_linear(weights.weight, weights.bias))
        if layer.activation != "identity":
            modules.append(activation)
    if mlp.spec.output_activation != "identity":
        modules.append(activation_module(mlp.spec.output_activation, mlp.spec.output_negative_slope))
    return nn.Sequential(*modules).eval()


def _linear(weight: Array, bias: Array | None) -> nn.Linear:
    out_features, in_features = weight.shape
    # meta: skip the random initialisation that would be overwritten at once.
    linear = nn.Linear(in_features, out_features, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(to_tensor(weight).clone(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(to_tensor(bias).clone(), requires_grad=False)
    return linear
