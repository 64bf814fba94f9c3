"""Operators of ONNX on tensors: the elementwise ones that activations are spelled with, and the few that
exporters apply to constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fused_mlp.models.importers.onnx_graph import Node

Attributes = Mapping[str, Any]


def _hard_sigmoid(x: Tensor, attributes: Attributes) -> Tensor:
    alpha, beta = float(attributes.get("alpha", 0.2)), float(attributes.get("beta", 0.5))
    return (x * alpha + beta).clamp(0, 1)


def clip(x: Tensor, low: Tensor | float | None, high: Tensor | float | None) -> Tensor:
    if low is not None:
        x = torch.maximum(x, torch.as_tensor(low, dtype=x.dtype))
    return x if high is None else torch.minimum(x, torch.as_tensor(high, dtype=x.dtype))


UNARY: dict[str, Callable[[Tensor, Attributes], Tensor]] = {
    "Abs": lambda x, _: x.abs(),
    "Celu": lambda x, a: functional.celu(x, a.get("alpha", 1.0)),
    "Elu": lambda x, a: functional.elu(x, a.get("alpha", 1.0)),
    "Erf": lambda x, _: torch.erf(x),
    "Exp": lambda x, _: torch.exp(x),
    "Gelu": lambda x, a: functional.gelu(x, approximate=a.get("approximate", "none")),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda x, _: functional.hardswish(x),
    "LeakyRelu": lambda x, a: functional.leaky_relu(x, a.get("alpha", 0.01)),
    "Log": lambda x, _: torch.log(x),
    "Mish": lambda x, _: functional.mish(x),
    "Neg": lambda x, _: -x,
    "Reciprocal": lambda x, _: 1 / x,
    "Relu": lambda x, _: functional.relu(x),
    "Sigmoid": lambda x, _: torch.sigmoid(x),
    "Softplus": lambda x, _: functional.softplus(x),
    "Sqrt": lambda x, _: torch.sqrt(x),
    "Swish": lambda x, a: x * torch.sigmoid(a.get("alpha", 1.0) * x),
    "Tanh": lambda x, _: torch.tanh(x),
}

BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "Div": torch.div,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Mul": torch.mul,
    "Pow": torch.pow,
    "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x),
    "Sub": torch.sub,
    # Conditions, as 0 and 1: exporters guard a softplus with x > 20.
    "Greater": lambda a, b: (a > b).double(),
    "GreaterOrEqual": lambda a, b: (a >= b).double(),
    "Less": lambda a, b: (a < b).double(),
    "LessOrEqual": lambda a, b: (a <= b).double(),
}

_DTYPES = {1: torch.float32, 7: torch.int64, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}


def fold_constants(node: Node, inputs: list[Tensor | None]) -> Tensor | None:
    """What a node makes of constants alone, for the operators that exporters put around weights and scalars;
    None for all others."""
    if node.op == "Constant":
        return _constant(node.attributes)
    tensors = [value for value in inputs if value is not None]
    if not tensors or len(tensors) != len(inputs):
        return None
    folded: Tensor | None = None
    first, attributes = tensors[0], node.attributes
    if node.op == "Identity":
        folded = first
    elif node.op == "Transpose":
        folded = first.permute(*attributes.get("perm", range(first.ndim - 1, -1, -1)))
    elif node.op == "Cast" and attributes.get("to") in _DTYPES:
        folded = first.to(_DTYPES[attributes["to"]])
    elif node.op == "Reshape" and len(tensors) == 2:
        sizes = tensors[1].tolist()
        folded = first.reshape([first.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)])
    elif node.op in UNARY and len(tensors) == 1 and first.is_floating_point():
        folded = UNARY[node.op](first, attributes)
    elif node.op in BINARY and len(tensors) == 2 and first.is_floating_point():
        folded = BINARY[node.op](first, tensors[1])
    return folded


def _constant(attributes: Attributes) -> Tensor | None:
    if isinstance(value := attributes.get("value"), Tensor):
        return value
    for name, dtype in (
        ("value_float", torch.float32),
        ("value_floats", torch.float32),
        ("value_int", torch.int64),
        ("value_ints", torch.int64),
    ):
        if name in attributes:
            return torch.tensor(attributes[name], dtype=dtype)
    return None
