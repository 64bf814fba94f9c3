# SPDX-License-Identifier: Apache-2.0
"""Rows of tables by ids, and the steps that make ids of floats."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import (
    ArgmaxNode,
    BagNode,
    BucketizeNode,
    Constant,
    EmbeddingNode,
    Node,
    PickNode,
)
from fused_mlp.models.importers.building.rows import Rows, permuted, whole
from fused_mlp.models.importers.building.selection import NodeGraph
from fused_mlp.models.importers.building.whole_numbers import as_ids

_MAX_CLASSES = 1 << 12  # of a one-hot code that no product takes in


def embedding(graph: NodeGraph, ids: Rows, table: Constant, *, code: bool = False) -> Rows:
    """table: (size, ...). The rows of the table, in the shape of the ids and of one row of it. `code`: the table is
    one that products should take in, such as a one-hot code with rows of zeros."""
    size, shape = table.shape[0], table.shape[1:]
    flat = table if len(table.shape) == 2 else table.of(table.array.reshape(size, -1))
    node = as_ids(graph, ids, size)
    if code:
        made: Node = EmbeddingNode(graph.place, (node,), node.width * flat.shape[1], flat, one_hot=True)
    else:
        made = _lookup(graph, node, flat)
    return whole(made, (*ids.shape, *shape), ids.rows_at)


def one_hot(graph: NodeGraph, ids: Rows, classes: int) -> Rows:
    if classes > _MAX_CLASSES:
        raise ModelLoadError(
            f"a one-hot code of {classes} classes: expected at most {_MAX_CLASSES}; use nn.Embedding"
        )
    node = as_ids(graph, ids, classes)
    table = Constant(np.eye(classes), fixed=True)
    made = EmbeddingNode(graph.place, (node,), node.width * classes, table, one_hot=True)
    return whole(
        graph.nodes.setdefault(("one_hot", node.number, classes), made),
        (*ids.shape, classes),
        ids.rows_at,
    )


def bag(
    graph: NodeGraph,
    ids: Rows,
    table: Constant,
    mode: Literal["sum", "mean", "max"],
    *,
    padding: int | None,
    factors: Rows | None = None,
) -> Rows:
    """Over the last axis of the ids. factors: in the shape of the ids."""
    if ids.rows_at == ids.index.ndim - 1:
        raise ModelLoadError("expected bags of ids, (rows, ids)")
    groups = ids.index.reshape(-1, ids.shape[-1])
    weights = [None] * len(groups) if factors is None else factors.index.reshape(groups.shape)
    made = []
    for group, weight in zip(graph.parts(list(groups)), weights, strict=True):
        sources = [as_ids(graph, Rows(ids.node, group[None]), table.shape[0])]
        if weight is not None:
            assert factors is not None
            sources.append(graph.gather(factors.node, weight))
        made.append(
            BagNode(
                graph.place, tuple(sources), table.shape[1], table, mode, padding, ragged=len(groups) == 1
            )
        )
    return whole(graph.side_by_side(made), (*ids.shape[:-1], table.shape[1]), ids.rows_at)


def bucketize(graph: NodeGraph, x: Rows, boundaries: Constant, *, right: bool) -> Rows:
    values = boundaries.exact
    if values.ndim != 1 or not values.size or (np.diff(values) < 0).any():
        raise ModelLoadError("expected boundaries in ascending order, one list for all features")
    x = graph.compact(x)
    node = BucketizeNode(graph.place, (x.node,), x.node.width, boundaries, right)
    return x.of(node)


def argmax(graph: NodeGraph, x: Rows, axis: int | None, *, keep: bool = False) -> Rows:
    if axis is None or x.axis(axis) == x.rows_at:
        raise ModelLoadError("it goes over the rows: expected argmax over features, dim=1")
    at = x.axis(axis)
    front = [each for each in range(x.index.ndim) if each != at]
    moved = permuted(x, [*front, at])
    nodes: list[Node] = []
    for group in graph.parts(list(moved.index.reshape(-1, x.shape[at]))):
        nodes.append(ArgmaxNode(graph.place, (graph.gather(x.node, group),), 1))
    made = whole(graph.side_by_side(nodes), moved.shape[:-1], moved.rows_at)
    return Rows(made.node, np.expand_dims(made.index, at), x.rows_at) if keep else made


def pick(graph: NodeGraph, x: Rows, axis: int, ids: Rows) -> Rows:
    """gather: along an axis, the features that the ids say. All features of a row beside each other are picked by
    one id, which is repeated."""
    at = x.axis(axis)
    if at == x.rows_at or len(np.unique(ids.order)) != 1 or ids.shape[at] != 1:
        raise ModelLoadError("expected gather of one position for each row, gather(1, index) of (rows, 1)")
    if any(a != b for i, (a, b) in enumerate(zip(x.shape, ids.shape, strict=True)) if i != at):
        raise ModelLoadError("expected an index as wide as what it picks from")
    one = Rows(ids.node, ids.order[:1][None])
    order = np.moveaxis(x.index, at, 0).reshape(-1)
    sources = (graph.gather(x.node, order), as_ids(graph, one, x.shape[at]))
    width = order.size // x.shape[at]
    return whole(PickNode(graph.place, sources, width, x.shape[at]), ids.shape, x.rows_at)


def _lookup(graph: NodeGraph, ids: Node, table: Constant) -> Node:
    if math.prod(table.shape) == 0:
        raise ModelLoadError(f"expected a table with rows and features, got {table.shape}")
    made = EmbeddingNode(graph.place, (ids,), ids.width * table.shape[1], table)
    return graph.once(("embedding", ids.number), (table,), made)
