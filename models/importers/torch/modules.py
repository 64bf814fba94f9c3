# SPDX-License-Identifier: Apache-2.0
"""The torch modules that functions and steps are written as: torch's own, and ours where torch has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from fused_mlp.models.importers.torch.formulas import apply
from fused_mlp.models.importers.torch.steps import apply_rules, bag, bucketize, normalize
from fused_mlp.models.program.chain import function_text
from fused_mlp.models.program.formula import Formula, parse
from fused_mlp.models.program.inputs import Rule
from fused_mlp.models.program.spec import DEFAULT_SLOPE, OutputActivation

# By the first part of the formula: its parameters follow.
_MODULES: dict[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "hardswish": nn.Hardswish,
    "mish": nn.Mish,
}
# By the whole text.
_NAMED: dict[str, Callable[[], nn.Module]] = {
    "x": nn.Identity,
    "relu6": nn.ReLU6,
    "selu": nn.SELU,
    "hardsigmoid": nn.Hardsigmoid,
    "softsign": nn.Softsign,
    "softmax": lambda: nn.Softmax(dim=-1),
    "log_softmax": lambda: nn.LogSoftmax(dim=-1),
}


def parameter(tensor: Tensor | None) -> nn.Parameter | None:
    return None if tensor is None else nn.Parameter(tensor, requires_grad=False)


class Function(nn.Module):
    """A formula that torch has no module for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def forward(self, x: Tensor) -> Tensor:
        return apply(parse(self.text), x)

    def extra_repr(self) -> str:
        return self.text


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


class ScaleShift(nn.Module):
    """x * weight + bias, one of each per feature, where it has them."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.register_parameter("weight", parameter(weight))
        self.register_parameter("bias", parameter(bias))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is not None:
            x = x * self.weight
        return x if self.bias is None else x + self.bias


class RowNorm(ScaleShift):
    """The norms that torch has no module for: l2, and those with a bias alone."""

    def __init__(self, kind: str, eps: float, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.kind, self.eps = kind, eps

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(normalize(x, self.kind, self.eps))

    def extra_repr(self) -> str:
        return f"{self.kind}, eps={self.eps}"


class RaggedBag(nn.Module):
    """An nn.EmbeddingBag for rows of a fixed length in which -1 stands for no id."""

    def __init__(self, table: nn.Parameter, mode: str, padding: int | None) -> None:
        super().__init__()
        self.weight, self.mode, self.padding = table, mode, padding

    def forward(self, ids: Tensor, offsets: None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return bag(ids, self.weight, self.mode, self.padding, per_sample_weights)

    def extra_repr(self) -> str:
        return f"{self.mode}, padding={self.padding}"


class Buckets(nn.Module):
    """torch.bucketize with its boundaries."""

    boundaries: Tensor

    def __init__(self, boundaries: Tensor, right: bool) -> None:
        super().__init__()
        self.register_buffer("boundaries", boundaries)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return bucketize(x, self.boundaries, self.right)


class WholeNumbers(nn.Module):
    """The rules of a field, on int64."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        super().__init__()
        self.rules = rules

    def forward(self, numbers: Tensor) -> Tensor:
        return apply_rules(self.rules, numbers.long())

    def extra_repr(self) -> str:
        return ", ".join(rule.op for rule in self.rules)


class Squeeze(nn.Module):
    """(..., 1) -> (...), at the end of a chain."""

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(-1)


def activation_module(name: OutputActivation, negative_slope: float = DEFAULT_SLOPE) -> nn.Module:
    """A fresh module for an activation of a layer."""
    if name in ("softmax", "log_softmax"):
        return _NAMED[name]()
    return function_module(parse(function_text(name, negative_slope)))


def function_module(formula: Formula) -> nn.Module:
    """A fresh module for a function: torch's own where it has one."""
    if formula.text in _NAMED:
        return _NAMED[formula.text]()
    if formula.simple is not None:
        name, numbers = formula.simple
        if name == "clip" and numbers[0] < numbers[1]:
            return nn.Hardtanh(numbers[0], numbers[1])
        if name in _MODULES:
            return _MODULES[name](*numbers)
    return Function(formula.text)
