"""The torch modules an MLP is made of: one table from activation names to modules, and the gated layer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from fused_mlp.models.spec import OutputActivation

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


def activation_module(name: OutputActivation, negative_slope: float = 0.01) -> nn.Module:
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
