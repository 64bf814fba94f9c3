# SPDX-License-Identifier: Apache-2.0
"""Operators over features: softmax and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.values import Reader, Value, ints

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader


def _softmax(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    # Up to opset 12 it goes over all axes from its own on: the same for rows.
    axis = node.attributes.get("axis", -1 if reader.opset >= 13 else 1)
    return reader.builder.softmax(x, axis, log=node.op == "LogSoftmax")


def _reduce(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    axes = ints(node, inputs, 1, "axes")
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return x
    axes = axes or list(range(x.index.ndim))
    builder, keep = reader.builder, bool(node.attributes.get("keepdims", 1))
    match node.op:
        case "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd":
            return builder.reduce(cast(Any, node.op.removeprefix("Reduce").lower()), x, axes, keep=keep)
        case "ReduceL1":
            return builder.reduce("sum", builder.function("abs", x), axes, keep=keep)
        case "ReduceLogSumExp":
            return builder.log_sum_exp(x, axes, keep=keep)
    squares = builder.reduce("sum", builder.function("square", x), axes, keep=keep)
    return squares if node.op == "ReduceSumSquare" else builder.function("sqrt", squares)


READERS: dict[str, Reader] = {
    "LogSoftmax": _softmax,
    "Softmax": _softmax,
    "ReduceL1": _reduce,
    "ReduceL2": _reduce,
    "ReduceLogSumExp": _reduce,
    "ReduceMax": _reduce,
    "ReduceMean": _reduce,
    "ReduceMin": _reduce,
    "ReduceProd": _reduce,
    "ReduceSum": _reduce,
    "ReduceSumSquare": _reduce,
}
