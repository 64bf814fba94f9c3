"""Elementwise operators of ONNX as formulas, and what a node makes of constants alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fused_mlp.models.dtypes import Array
from fused_mlp.models.formula import Node as Tree
from fused_mlp.models.formula import binary, call, constant, x
from fused_mlp.models.importers.onnx_graph import Node

Attributes = Mapping[str, Any]
# Of an array that folding makes; more is no weight of an MLP.
MAX_FOLDED = 1 << 28


def shortest(value: Any) -> float:
    """0.01 where float32 has 0.009999999776: the shortest number that is the same one in the file's dtype."""
    number = np.float32(value) if isinstance(value, float) else value
    return float(str(number)) if np.isfinite(number) else float(number)


def _plain(name: str) -> Callable[[Attributes], Tree]:
    return lambda _: call(name, x())


def _with_alpha(name: str, default: float) -> Callable[[Attributes], Tree]:
    return lambda a: call(name, x(), shortest(a.get("alpha", default)))


def _hard_sigmoid(a: Attributes) -> Tree:
    alpha, beta = shortest(a.get("alpha", 0.2)), shortest(a.get("beta", 0.5))
    return call("clip", binary("add", binary("multiply", x(), constant(alpha)), constant(beta)), 0.0, 1.0)


def _selu(a: Attributes) -> Tree:
    alpha, gamma = shortest(a.get("alpha", 1.6732632)), shortest(a.get("gamma", 1.050701))
    return binary("multiply", constant(gamma), call("elu", x(), alpha))


def _swish(a: Attributes) -> Tree:
    scaled = binary("multiply", constant(shortest(a.get("alpha", 1.0))), x())
    return (
        call("silu", x()) if a.get("alpha", 1.0) == 1.0 else binary("multiply", x(), call("sigmoid", scaled))
    )


FUNCTIONS: dict[str, Callable[[Attributes], Tree]] = {
    "Abs": _plain("abs"),
    "Celu": _with_alpha("celu", 1.0),
    "Cos": _plain("cos"),
    "Elu": _with_alpha("elu", 1.0),
    "Erf": _plain("erf"),
    "Exp": _plain("exp"),
    "Gelu": lambda a: call("gelu_tanh" if a.get("approximate", "none") == "tanh" else "gelu", x()),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain("hardswish"),
    "LeakyRelu": _with_alpha("leaky_relu", 0.01),
    "Log": _plain("log"),
    "Mish": _plain("mish"),
    "Neg": lambda _: binary("multiply", x(), constant(-1.0)),
    "QuickGelu": lambda a: binary(
        "multiply", x(), call("sigmoid", binary("multiply", constant(shortest(a.get("alpha", 1.702))), x()))
    ),
    "Reciprocal": _plain("reciprocal"),
    "Relu": _plain("relu"),
    "Selu": _selu,
    "Sigmoid": _plain("sigmoid"),
    "Sign": _plain("sign"),
    "Sin": _plain("sin"),
    "Softplus": _plain("softplus"),
    "Softsign": _plain("softsign"),
    "Sqrt": _plain("sqrt"),
    "Swish": _swish,
    "Tanh": _plain("tanh"),
}
ARITHMETIC = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Max": "maximum",
    "Min": "minimum",
}
COMPARISONS = {
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Equal": "equal",
}

_BROADCAST = {*ARITHMETIC, *COMPARISONS, "Pow", "Where", "PRelu", "Mod", "And", "Or"}
# Others, such as control flow and random numbers, are no constants.
_FOLDED = {
    *_BROADCAST, *FUNCTIONS, "Constant", "ConstantOfShape", "Expand", "Identity", "Transpose", "Cast", "CastLike",
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Slice", "Split", "Gather", "Shape", "Size", "Range",
    "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL2", "ReduceSumSquare", "ReduceMax", "ReduceMin",
    "LpNormalization", "MatMul", "Gemm", "Not", "Ceil", "Floor", "Softmax", "Tile", "Trilu", "Clip", "Dropout",
}  # fmt: skip


def fold(node: Node, inputs: list[Array | None], opset: int, rows: int) -> list[Array] | None:
    """What a node makes of constants alone, by the reference implementation of onnx; None where it is not known.
    `rows`: what stands for their number in shapes. An array with an entry for every row gets one for all of them."""
    if node.domain or node.op not in _FOLDED:
        return None
    if node.op in ("Expand", "ConstantOfShape", "Tile") and isinstance(sizes := inputs[-1], np.ndarray):
        inputs = [*inputs[:-1], np.where((sizes % rows == 0) & (sizes > 0), sizes // rows, sizes)]
    if _size(node, inputs) > MAX_FOLDED:
        return None
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415 - an extra
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415

    def attribute(value: Any) -> Any:
        return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value

    names = [f"i{index}" if value is not None else "" for index, value in enumerate(inputs)]
    outputs = [f"o{index}" for index in range(len(node.outputs))]
    made = helper.make_node(
        node.op, names, outputs, **{key: attribute(value) for key, value in node.attributes.items()}
    )
    infos = [[helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in names if name]]
    infos.append([helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs])
    model = helper.make_model(
        helper.make_graph([made], "constants", *infos), opset_imports=[helper.make_opsetid("", opset)]
    )
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if value is not None}
    return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, feeds)]


def _size(node: Node, inputs: list[Array | None]) -> int:
    """About how many values come of it."""
    arrays = [value for value in inputs if value is not None]
    if node.op in _BROADCAST:
        return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    if node.op in ("Expand", "ConstantOfShape", "Tile"):
        return math.prod(max(abs(int(size)), 1) for size in arrays[-1].reshape(-1)) * max(arrays[0].size, 1)
    if node.op == "Range":
        start, limit, delta = (float(array.reshape(-1)[0]) for array in arrays)
        return int(abs(limit - start) / max(abs(delta), 1e-9))
    if node.op in ("MatMul", "Gemm"):
        return math.prod(array.size // max(1, min(array.shape, default=1)) for array in arrays[:2])
    if node.op == "Gather":
        return arrays[1].size * max(1, arrays[0].size // max(1, min(arrays[0].shape, default=1)))
    return sum(array.size for array in arrays)


def cast_name(code: int) -> str | None:
    """The dtype of a number of TensorProto.DataType, if it is one of floats."""
    return {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}.get(code)


__all__ = ["ARITHMETIC", "COMPARISONS", "FUNCTIONS", "cast_name", "fold", "shortest"]
