# SPDX-License-Identifier: Apache-2.0
"""Norms over features, and those of training that are a scale and a shift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows, reshaped
from fused_mlp.models.importers.onnx.functions import shortest
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.values import Reader, Value, array_of
from fused_mlp.models.spec import Combination

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader

_TINY = 1e-30  # so that a row of zeros stays one


def _batch_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    if node.attributes.get("training_mode", 0):
        raise ModelLoadError(f"{node.where} is in training mode: export the model in eval mode")
    weight, bias, mean, variance = (Constant(array_of(each, node)) for each in inputs[1:5])
    eps = shortest(node.attributes.get("epsilon", 1e-5))
    return reader.builder.batch_norm(x, mean, variance, weight=weight, bias=bias, eps=eps)


def _layer_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    start = x.axis(node.attributes.get("axis", -1))
    axes = range(start, x.index.ndim)
    weight, bias = (_vector(node, inputs, at, x.shape[start:]) for at in (1, 2))
    eps = shortest(node.attributes.get("epsilon", 1e-5))
    kind: Any = "layer" if node.op == "LayerNormalization" else "rms"
    return reader.builder.norm(kind, x, axes, eps=eps, weight=weight, bias=bias)


def _vector(node: Node, inputs: list[Value], at: int, shape: Sequence[int]) -> Constant | None:
    if len(inputs) <= at or inputs[at] is None:
        return None
    given = inputs[at]
    array = array_of(given, node)
    assert isinstance(given, Constant)
    same = array.shape == tuple(shape)
    return given if same else given.of(np.broadcast_to(array, tuple(shape)))


def _instance_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    """torch writes a group norm as one of these between two reshapes."""
    ones = (1,) * (x.index.ndim - 2)
    weight, bias = (Constant(array_of(each, node).reshape(1, -1, *ones)) for each in inputs[1:3])
    eps = shortest(node.attributes.get("epsilon", 1e-5))
    normal = reader.builder.norm("layer", x, range(2, x.index.ndim), eps=eps)
    return reader.builder.arithmetic("add", reader.builder.arithmetic("multiply", normal, weight), bias)


def _group_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    groups, features = int(node.attributes["num_groups"]), x.shape[1]
    if x.rows_at != 0 or features % groups:
        raise ModelLoadError(f"{node.where}: {groups} groups of {features} features")
    eps = shortest(node.attributes.get("epsilon", 1e-5))
    parts = reshaped(x, (x.shape[0], groups, features // groups, *x.shape[2:]), 0)
    normal = reader.builder.norm("layer", parts, range(2, parts.index.ndim), eps=eps)
    ones = (1,) * (x.index.ndim - 2)
    made = reshaped(normal, x.shape, 0)
    for op, given in (("multiply", inputs[1]), ("add", inputs[2])):
        vector = array_of(given, node)
        vector = np.repeat(vector, features // groups) if vector.size == groups != features else vector
        made = reader.builder.arithmetic(cast(Combination, op), made, Constant(vector.reshape(1, -1, *ones)))
    return made


def _lp_norm(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    return normalized(reader, x, node.attributes.get("axis", -1), int(node.attributes.get("p", 2)))


def normalized(reader: RowsReader, x: Rows, axis: int, power: int) -> Rows:
    if power == 2:
        return reader.builder.norm("l2", x, (axis,), eps=_TINY)
    total = reader.builder.reduce("sum", reader.builder.function("abs", x), (axis,), keep=True)
    return reader.builder.arithmetic("divide", x, total)


READERS: dict[str, Reader] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "RMSNormalization": _layer_norm,
    "SimplifiedLayerNormalization": _layer_norm,
}
