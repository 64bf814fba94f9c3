# SPDX-License-Identifier: Apache-2.0
"""Norms over features, and those of training that are a scale and a shift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.onnx.functions import shortest
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.values import Reader, Value, array_of

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader

_TINY = 1e-30  # so that a row of zeros stays one


def _eps(node: Node) -> float:
    return shortest(node.attributes.get("epsilon", 1e-5))


def _batch_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    if node.attributes.get("training_mode", 0):
        raise ModelLoadError(f"{node.where} is in training mode: export the model in eval mode")
    weight, bias, mean, variance = (Constant(array_of(each, node)) for each in inputs[1:5])
    return reader.builder.batch_norm(x, mean, variance, weight=weight, bias=bias, eps=_eps(node))


def _layer_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    start = x.axis(node.attributes.get("axis", -1))
    axes = range(start, x.index.ndim)
    weight, bias = (_vector(node, inputs, at, x.shape[start:]) for at in (1, 2))
    kind: Any = "layer" if node.op == "LayerNormalization" else "rms"
    return reader.builder.norm(kind, x, axes, eps=_eps(node), weight=weight, bias=bias)


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
    weight, bias = (Constant(array_of(each, node)) for each in inputs[1:3])
    normal = reader.builder.norm("layer", x, range(2, x.index.ndim), eps=_eps(node))
    return reader.builder.scale_channels(normal, weight, bias)


def _group_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    """Up to opset 20, weight and bias have one number for each group."""
    groups, vectors = int(node.attributes["num_groups"]), [array_of(each, node) for each in inputs[1:3]]
    weight, bias = (
        Constant(np.repeat(each, x.shape[1] // groups) if each.size == groups != x.shape[1] else each)
        for each in vectors
    )
    return reader.builder.group_norm(x, groups, eps=_eps(node), weight=weight, bias=bias)


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
