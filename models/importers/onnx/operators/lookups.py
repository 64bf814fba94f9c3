# SPDX-License-Identifier: Apache-2.0
"""Operators that look up: rows of a table by ids, one-hot codes, and the part of a row that the row itself picks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import PICKS_ROWS, Rows
from fused_mlp.models.importers.onnx.categories import Categories, between
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.encoders import blank_code
from fused_mlp.models.importers.onnx.operators.values import Reader, Value, array_of
from fused_mlp.models.weights.dtypes import Array

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader


def gather_of_table(reader: RowsReader, node: Node, table: Constant, ids: Rows | Categories) -> Rows:
    """Rows of a constant by ids."""
    if node.attributes.get("axis", 0) not in (0, -len(table.shape)):
        raise ModelLoadError(f"{node.where}: expected axis 0 of a table, got {node.attributes['axis']}")
    if isinstance(ids, Categories):
        return ids.rows_of(reader.builder, table)
    return reader.builder.embedding(ids, table)


def one_hot(reader: RowsReader, node: Node, ids: Rows | Categories, inputs: list[Value]) -> Rows:
    classes = int(array_of(inputs[1], node).reshape(-1)[0])
    off, on = (float(each) for each in array_of(inputs[2], node).reshape(-1))
    if node.attributes.get("axis", -1) not in (-1, _shape(ids)):
        raise ModelLoadError(f"{node.where}: expected axis -1, got {node.attributes['axis']}")
    # Places count from the end if they are negative; those beyond are all off.
    if isinstance(ids, Rows):
        ids = between(reader.builder, ids, -classes, classes - 1)
    code = blank_code(len(ids.values), classes) + off
    for row, value in enumerate(ids.values.tolist()):
        if -classes <= value < classes:
            code[row, int(value)] = on
    return reader.builder.embedding(ids.ids, Constant(code, fixed=True), code=True)


def _shape(ids: Rows | Categories) -> int:
    return (ids.ids if isinstance(ids, Categories) else ids).index.ndim


def _gather_elements(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    ids = inputs[1]
    if not isinstance(ids, Rows):
        raise ModelLoadError(f"{node.where}: expected ids that each row brings")
    return reader.builder.pick(x, node.attributes.get("axis", 0), ids)


def _gather_nd(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    """A row picks one of its own vectors (batch_dims 1 and one id), or features are picked by constants."""
    ids = inputs[1]
    if isinstance(ids, Constant):
        return _picked(node, x, ids.array)
    if (
        not isinstance(ids, Rows)
        or node.attributes.get("batch_dims", 0) != 1
        or ids.shape != (1, 1)
        or x.rows_at != 0
    ):
        raise ModelLoadError(f"{node.where}: expected one id for each row, of batch_dims 1")
    wide = np.broadcast_to(ids.index.reshape((1,) * x.index.ndim), (1, 1, *x.shape[2:]))
    made = reader.builder.pick(x, 1, Rows(ids.node, wide))
    return Rows(made.node, made.index.reshape(1, *x.shape[2:]))


def _picked(node: Node, x: Rows, positions: Array) -> Rows:
    """positions: (..., n), of the first n axes."""
    count = positions.shape[-1]
    if node.attributes.get("batch_dims", 0) or x.rows_at < count:
        raise ModelLoadError(PICKS_ROWS)
    index = x.index[tuple(np.moveaxis(positions, -1, 0))]
    return Rows(x.node, index, x.rows_at - count + positions.ndim - 1)


def _arg_max(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    if node.attributes.get("select_last_index", 0):
        raise ModelLoadError(f"{node.where}: expected the first of equal values, got select_last_index")
    keep = bool(node.attributes.get("keepdims", 1))
    return reader.builder.argmax(reader.builder.as_floats(x), node.attributes.get("axis", 0), keep=keep)


READERS: dict[str, Reader] = {
    "ArgMax": _arg_max,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
}
