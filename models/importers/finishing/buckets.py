# SPDX-License-Identifier: Apache-2.0
"""Buckets that a graph spells with comparisons: the first of ascending limits that a value is below, or none."""

from __future__ import annotations

import numpy as np

from fused_mlp.models.importers.building.nodes import (
    ArgmaxNode,
    BucketizeNode,
    CompareNode,
    ConcatNode,
    Constant,
    ElementNode,
    LinearNode,
    Node,
    RepeatNode,
    SliceNode,
    affine_of,
)
from fused_mlp.models.importers.finishing.graph import ChangingGraph


def put_into_buckets(graph: ChangingGraph, node: Node) -> bool:
    """argmax(x < limits, x * 0 + 1), as scikit-learn's bins are exported: NaN and what is beyond all limits are in
    the last bucket, here and there."""
    source = node.sources[0] if isinstance(node, ArgmaxNode) else None
    if not isinstance(source, ConcatNode) or len(source.sources) != 2:
        return False
    below, last = source.sources
    limits = _constant(below.sources[1]) if isinstance(below, CompareNode) and below.op == "less" else None
    if limits is None or (np.diff(limits.exact) < 0).any():
        return False
    if not isinstance(last, ElementNode) or last.width != 1 or affine_of(last.tree) != (0.0, 1.0):
        return False
    (x,) = last.sources
    if _feature(below.sources[0]) != _feature(x):
        return False
    graph.replace(node, BucketizeNode(node.place, (x,), 1, limits, right=True))
    return True


def _constant(node: Node) -> Constant | None:
    """A product with zeros, and a bias."""
    if isinstance(node, LinearNode) and not node.weight.array.any():
        return node.bias
    return None


def _feature(node: Node) -> tuple[int, int] | None:
    """The one feature that a value is, as often as it is there: (number of its node, place)."""
    if isinstance(node, LinearNode) and node.role in ("broadcast", "select"):
        places = set(node.weight.array.argmax(axis=1).tolist())
        return (node.sources[0].number, places.pop()) if len(places) == 1 else None
    if isinstance(node, RepeatNode):
        return _feature(node.sources[0])
    if isinstance(node, SliceNode) and node.width == 1:
        return node.sources[0].number, node.start
    return (node.number, 0) if node.width == 1 else None
