"""Operators of ONNX on arrays: the elementwise ones that activations are spelled with, and the few that
exporters apply to constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fused_mlp.models.activations import erf
from fused_mlp.models.chain import activate
from fused_mlp.models.dtypes import Array, is_floating, named_dtype
from fused_mlp.models.importers.onnx_graph import Node

Attributes = Mapping[str, Any]


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x))


def _hard_sigmoid(x: Array, attributes: Attributes) -> Array:
    alpha, beta = float(attributes.get("alpha", 0.2)), float(attributes.get("beta", 0.5))
    return np.clip(x * alpha + beta, 0, 1)


def _gelu(x: Array, attributes: Attributes) -> Array:
    return activate("gelu_tanh" if attributes.get("approximate", "none") == "tanh" else "gelu", x)


def clip(x: Array, low: Array | float | None, high: Array | float | None) -> Array:
    if low is not None:
        x = np.maximum(x, np.asarray(low, x.dtype))
    return x if high is None else np.minimum(x, np.asarray(high, x.dtype))


UNARY: dict[str, Callable[[Array, Attributes], Array]] = {
    "Abs": lambda x, _: np.abs(x),
    "Celu": lambda x, a: np.maximum(x, 0) + np.minimum(0, _elu(x / a.get("alpha", 1.0), a.get("alpha", 1.0))),
    "Elu": lambda x, a: _elu(x, a.get("alpha", 1.0)),
    "Erf": lambda x, _: erf(x),
    "Exp": lambda x, _: np.exp(x),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda x, _: activate("hardswish", x),
    "LeakyRelu": lambda x, a: activate("leaky_relu", x, a.get("alpha", 0.01)),
    "Log": lambda x, _: np.log(x),
    "Mish": lambda x, _: activate("mish", x),
    "Neg": lambda x, _: -x,
    "Reciprocal": lambda x, _: 1 / x,
    "Relu": lambda x, _: activate("relu", x),
    "Sigmoid": lambda x, _: activate("sigmoid", x),
    "Softplus": lambda x, _: activate("softplus", x),
    "Sqrt": lambda x, _: np.sqrt(x),
    "Swish": lambda x, a: x * activate("sigmoid", a.get("alpha", 1.0) * x),
    "Tanh": lambda x, _: np.tanh(x),
}

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Pow": np.power,
    "PRelu": lambda x, slope: np.where(x < 0, slope * x, x),
    "Sub": np.subtract,
    # Conditions, as 0 and 1: exporters guard a softplus with x > 20.
    "Greater": lambda a, b: (a > b).astype(np.float64),
    "GreaterOrEqual": lambda a, b: (a >= b).astype(np.float64),
    "Less": lambda a, b: (a < b).astype(np.float64),
    "LessOrEqual": lambda a, b: (a <= b).astype(np.float64),
}

# By the number in TensorProto.DataType.
_DTYPES = {1: "float32", 7: "int64", 10: "float16", 11: "float64", 16: "bfloat16"}


def fold_constants(node: Node, inputs: list[Array | None]) -> Array | None:
    """What a node makes of constants alone, for the operators that exporters put around weights and scalars;
    None for all others."""
    if node.op == "Constant":
        return _constant(node.attributes)
    tensors = [value for value in inputs if value is not None]
    if not tensors or len(tensors) != len(inputs):
        return None
    folded: Array | None = None
    first, attributes = tensors[0], node.attributes
    if node.op == "Identity":
        folded = first
    elif node.op == "Transpose":
        folded = first.transpose(attributes.get("perm"))
    elif node.op == "Cast" and attributes.get("to") in _DTYPES:
        folded = first.astype(named_dtype(_DTYPES[attributes["to"]]))
    elif node.op == "Reshape" and len(tensors) == 2:
        sizes = tensors[1].tolist()
        folded = first.reshape([first.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)])
    elif node.op in UNARY and len(tensors) == 1 and is_floating(first.dtype):
        folded = UNARY[node.op](first, attributes)
    elif node.op in BINARY and len(tensors) == 2 and is_floating(first.dtype):
        folded = BINARY[node.op](first, tensors[1])
    return None if folded is None else np.asarray(folded)  # numpy makes scalars of what has no dimensions


def _constant(attributes: Attributes) -> Array | None:
    if isinstance(value := attributes.get("value"), np.ndarray):
        return value
    for name, dtype in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in attributes:
            return np.array(attributes[name], dtype)
    return None
