# SPDX-License-Identifier: Apache-2.0
"""Folds nodes whose inputs are all constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.onnx.functions import ARITHMETIC, COMPARISONS, FUNCTIONS
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.weights.dtypes import Array

_BROADCAST = {*ARITHMETIC, *COMPARISONS, "Pow", "Where", "PRelu", "Mod", "And", "Or", "Xor", "Clip"}
# Others, such as control flow and random numbers, are no constants.
_FOLDED = {
    *_BROADCAST, *FUNCTIONS, "Constant", "ConstantOfShape", "Expand", "Identity", "Transpose", "Cast", "CastLike",
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Slice", "Split", "Gather", "Shape", "Size", "Range",
    "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL2", "ReduceSumSquare", "ReduceMax", "ReduceMin",
    "LpNormalization", "MatMul", "Gemm", "Not", "Ceil", "Floor", "Softmax", "Tile", "Trilu", "Dropout",
    "DequantizeLinear", "IsNaN",
}  # fmt: skip


def fold(
    node: Node, inputs: list[Array | None], opset: int, rows: int, max_values: int
) -> list[Array] | None:
    """The outputs of a node of constants alone, by the reference implementation of onnx; None if it is not known.
    `rows`: what stands for their number in shapes. An array with an entry for every row gets one for all of them."""
    if node.domain or node.op not in _FOLDED or _makes_texts(node, inputs):
        return None
    if has_row_count(node, inputs, rows):
        sizes = cast(Array, inputs[-1])
        inputs = [*inputs[:-1], np.where(_with_rows(sizes, rows), sizes // rows, sizes)]
    if _size(node, inputs) > max_values:
        raise ModelLoadError("its constants become too large for an MLP: expected weights to be in the file")
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


def has_row_count(node: Node, inputs: Sequence[Array | None], rows: int) -> bool:
    """Whether the node repeats a constant for every row."""
    if rows == 1 or node.op not in ("Expand", "ConstantOfShape", "Tile"):
        return False
    sizes = inputs[-1]
    return sizes is not None and bool(_with_rows(sizes, rows).any())


def _with_rows(sizes: Array, rows: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (sizes % rows == 0) & (sizes > 0)
    return found


def _makes_texts(node: Node, inputs: list[Array | None]) -> bool:
    like = inputs[-1] if node.op == "CastLike" else None
    return node.attributes.get("to") == _STRING or (like is not None and like.dtype.kind in "OUS")


_STRING = 8  # of TensorProto.DataType
_PART = 1 << 10  # values: an array costs more than what is in it


def _size(node: Node, inputs: list[Array | None]) -> int:  # noqa: PLR0911 - a table of operators
    """About how many values come of it."""
    arrays = [value for value in inputs if value is not None]
    if node.op in _BROADCAST:
        return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    if node.op in ("Expand", "ConstantOfShape", "Tile"):
        return math.prod(max(abs(int(size)), 1) for size in arrays[-1].reshape(-1)) * max(arrays[0].size, 1)
    if node.op == "Range":
        start, limit, delta = (float(array.reshape(-1)[0]) for array in arrays)
        return math.ceil(abs(limit - start) / abs(delta))
    if node.op == "Split":  # into as many parts as its sizes or its attribute say
        parts = arrays[1].size if len(arrays) > 1 else node.attributes.get("num_outputs", 0)
        return max(arrays[0].size, int(parts) * _PART)
    if (
        node.op == "DequantizeLinear"
    ):  # scales are repeated for their blocks, and an axis of one for its scales
        scales = arrays[1].size * max(1, int(node.attributes.get("block_size", 0)))
        return arrays[0].size * scales if 1 in arrays[0].shape else max(arrays[0].size, scales)
    if node.op in ("MatMul", "Gemm"):
        return math.prod(array.size // max(1, min(array.shape, default=1)) for array in arrays[:2])
    if node.op == "Gather":
        return arrays[1].size * max(1, arrays[0].size // max(1, min(arrays[0].shape, default=1)))
    return sum(array.size for array in arrays)
