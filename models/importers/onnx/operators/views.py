# SPDX-License-Identifier: Apache-2.0
"""Operators that compute nothing: shapes, and parts of a row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import (
    Rows,
    expanded,
    inserted,
    permuted,
    removed,
    reshaped,
    taken,
)
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.values import Reader, Value, array_of, ints

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader


def _reshape(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    sizes = ints(node, inputs, 1, "shape")
    if sizes is None:
        raise ModelLoadError(f"{node.where}: expected a constant shape")
    if not node.attributes.get("allowzero", 0):
        sizes = [
            own if size == 0 else size for size, own in zip(sizes, [*reader.sizes(x), *sizes], strict=False)
        ]
    return reshaped(x, *reader.split_rows(x, sizes))


def _flatten(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    axis = node.attributes.get("axis", 1)
    axis = axis + x.index.ndim if axis < 0 else axis
    sizes = reader.sizes(x)
    return reshaped(x, *reader.split_rows(x, [math.prod(sizes[:axis]), math.prod(sizes[axis:])]))


def _transpose(_: RowsReader, node: Node, x: Rows, __: list[Value]) -> Rows:
    return permuted(x, node.attributes.get("perm", list(reversed(range(x.index.ndim)))))


def _squeeze(_: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    axes = ints(node, inputs, 1, "axes")
    return removed(x, [axis for axis in range(x.index.ndim) if axis != x.rows_at] if axes is None else axes)


def _unsqueeze(_: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    axes = ints(node, inputs, 1, "axes") or []
    ndim = x.index.ndim + len(axes)
    for axis in sorted(axis + ndim if axis < 0 else axis for axis in axes):
        x = inserted(x, axis)
    return x


def _expand(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    sizes = np.broadcast_shapes(tuple(reader.sizes(x)), tuple(ints(node, inputs, 1, "shape") or ()))
    rows_at = x.rows_at + len(sizes) - x.index.ndim
    shape = [size // reader.rows if axis == rows_at else size for axis, size in enumerate(sizes)]
    return expanded(x, shape, rows_at)


def _slice(_: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    starts, ends = (ints(node, inputs, at, name) or [] for at, name in ((1, "starts"), (2, "ends")))
    axes = ints(node, inputs, 3, "axes") or list(range(len(starts)))
    steps = ints(node, inputs, 4, "steps") or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        everything = start == 0 and step == 1 and end >= 1 << 31
        if x.axis(axis) == x.rows_at and everything:
            continue
        stop = None if step < 0 and end < -(1 << 30) else end
        x = taken(x, axis, slice(start, stop, step))
    return x


def _gather(_: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    indices = array_of(inputs[1], node)
    axis = node.attributes.get("axis", 0)
    if indices.ndim == 0:
        return taken(x, axis, int(indices))
    made = taken(x, axis, indices.reshape(-1).astype(np.intp))
    at = x.axis(axis)
    shape = (*x.shape[:at], *indices.shape, *x.shape[at + 1 :])
    return Rows(made.node, made.index.reshape(shape), x.rows_at + (indices.ndim - 1) * (at < x.rows_at))


def _split(_: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> list[Value]:
    axis = node.attributes.get("axis", 0)
    width, count = x.shape[x.axis(axis)], len(node.outputs)
    even = -(-width // count)
    sizes = ints(node, inputs, 1, "split") or [min(even, width - even * part) for part in range(count)]
    ends = np.cumsum(sizes).tolist()
    if ends[-1] != width:
        raise ModelLoadError(f"{node.where}: parts of {sizes} for {width} features")
    return [taken(x, axis, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def _shape_of(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Constant:
    sizes = reader.sizes(x)[node.attributes.get("start", 0) : node.attributes.get("end")]
    return Constant(np.array(sizes, np.int64))


def _size_of(reader: RowsReader, _: Node, x: Rows, __: list[Value]) -> Constant:
    return Constant(np.array(math.prod(reader.sizes(x)), np.int64))


READERS: dict[str, Reader] = {
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Reshape": _reshape,
    "Shape": _shape_of,
    "Size": _size_of,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
