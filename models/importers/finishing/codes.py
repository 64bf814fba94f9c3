# SPDX-License-Identifier: Apache-2.0
"""Lookups: a one-hot code becomes a lookup in the columns of the products that read it, and a sum of table rows a
bag."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fused_mlp.models.importers.building.nodes import (
    BagNode,
    CombineNode,
    ConcatNode,
    ElementNode,
    EmbeddingNode,
    FieldNode,
    LinearNode,
    Node,
    ReduceNode,
    RepeatNode,
    SliceNode,
    WhereNode,
    order_of,
)
from fused_mlp.models.importers.building.whole_numbers import left_out
from fused_mlp.models.importers.finishing.graph import ChangingGraph
from fused_mlp.models.program import formula


def take_in_codes(graph: ChangingGraph, node: Node) -> bool:
    """W concat(one_hot(i), x) + b = column i of W + (W_x x + b)."""
    if not isinstance(node, LinearNode) or node.role:
        return False
    parts = _parts(node.sources[0])
    if not any(_is_code(part) for part in parts):
        return False
    edges = np.cumsum([0, *(part.width for part in parts)]).tolist()
    spans = list(pairwise(edges))
    kept = [(part, span) for part, span in zip(parts, spans, strict=True) if not _is_code(part)]
    tables = [
        column
        for part, span in zip(parts, spans, strict=True)
        if isinstance(part, EmbeddingNode) and part.one_hot
        for column in _columns(node, part, span[0])
    ]
    total: Node
    if kept:
        total = _rest(node, [part for part, _ in kept], [span for _, span in kept])
    else:
        total = tables.pop(0)
        if node.bias is not None:
            total.table = total.table.of(total.table.exact + node.bias.exact, node.bias)
    for each in tables:
        total = CombineNode(node.place, (total, each), node.width, "add")
    graph.replace(node, total)
    return True


def _columns(node: LinearNode, code: EmbeddingNode, start: int) -> list[EmbeddingNode]:
    """A lookup for each id of a code."""
    (ids,) = code.sources
    classes = code.table.shape[1]
    made = []
    for at in range(ids.width):
        first = start + at * classes
        columns = code.table.exact @ node.weight.exact[:, first : first + classes].T
        table = node.weight.of(np.ascontiguousarray(columns))
        made.append(EmbeddingNode(node.place, (_one(ids, at),), node.width, table))
    return made


def _rest(node: LinearNode, parts: list[Node], spans: list[tuple[int, int]]) -> Node:
    """The product with all other parts."""
    source = (
        parts[0] if len(parts) == 1 else ConcatNode(node.place, tuple(parts), sum(p.width for p in parts))
    )
    columns = np.concatenate([np.arange(first, last) for first, last in spans])
    weight = node.weight.of(node.weight.exact[:, columns])
    return LinearNode(node.place, (source,), node.width, weight, node.bias)


def sum_up(graph: ChangingGraph, node: Node) -> bool:
    """The sum, mean or maximum of the rows that several ids pick is a bag."""
    if not isinstance(node, ReduceNode) or node.over != "vectors":
        return False
    source = node.sources[0]
    if not isinstance(source, EmbeddingNode) or source.one_hot or not graph.is_only_use(source):
        return False
    if source.sources[0].width != node.groups:
        return False
    graph.replace(node, BagNode(node.place, source.sources, node.width, source.table, node.mode))
    return True


def mask_out(graph: ChangingGraph, node: Node) -> bool:
    """(table[ids] * (ids != p)).sum(1), or with where in place of the product, is a bag with the padding p."""
    masked = node.sources[0] if _sums_vectors(node) else None
    if isinstance(masked, CombineNode) and masked.op == "multiply":
        pairs = [masked.sources, masked.sources[::-1]]
    elif isinstance(masked, WhereNode) and _is_zero(masked.sources[2]):
        pairs = [(masked.sources[1], masked.sources[0])]
    else:
        return False
    for rows, spread in pairs:
        ids = rows.sources[0] if isinstance(rows, EmbeddingNode) else None
        mask = None if ids is None else _spread(spread, ids.width, node.width)
        if isinstance(rows, EmbeddingNode) and isinstance(ids, FieldNode) and mask is not None:
            padding = left_out(ids, mask)
            if padding is not None and rows.width == ids.width * node.width:
                made = BagNode(node.place, (ids,), node.width, rows.table, "sum", padding, ragged=True)
                graph.replace(node, made)
                return True
    return False


def count_masked(graph: ChangingGraph, node: Node) -> bool:
    """Such a bag over (ids != p).sum(1).clamp(min=1) is a mean."""
    if not isinstance(node, CombineNode) or node.op != "divide":
        return False
    total, count = node.sources
    if isinstance(count, (LinearNode, RepeatNode)) and count.sources[0].width == 1:
        (count,) = count.sources
    if not isinstance(total, BagNode) or not isinstance(count, ElementNode) or not graph.is_only_use(total):
        return False
    added, ids = count.sources[0], total.sources[0]
    at_least_one = count.tree == formula.parse("maximum(x, 1)").root
    if not at_least_one or not isinstance(added, LinearNode) or added.role != "sum":
        return False
    if not isinstance(ids, FieldNode) or total.padding != left_out(ids, added.sources[0]):
        return False
    graph.replace(
        node, BagNode(node.place, (ids,), node.width, total.table, "mean", total.padding, ragged=True)
    )
    return True


def trim_codes(graph: ChangingGraph, node: Node) -> bool:
    """Some features of a code: one without its first column."""
    source = node.sources[0] if isinstance(node, SliceNode) else None
    if not isinstance(node, SliceNode) or not isinstance(source, EmbeddingNode) or not source.one_hot:
        return False
    if source.sources[0].width > 1:
        return False
    table = source.table.of(source.table.array[:, node.start : node.start + node.width])
    graph.replace(node, EmbeddingNode(node.place, source.sources, node.width, table, one_hot=True))
    return True


def _sums_vectors(node: Node) -> bool:
    """Whether it sums up vectors that lie side by side."""
    if isinstance(node, ReduceNode):
        return node.mode == "sum" and node.over == "vectors"
    if not isinstance(node, LinearNode) or node.bias is not None or node.sources[0].width % node.width:
        return False
    count = node.sources[0].width // node.width
    return np.array_equal(node.weight.array, np.tile(np.eye(node.width), count))


def _spread(node: Node, count: int, times: int) -> Node | None:
    """The node of which a value has each of `count` features `times` times; None if there is none."""
    if isinstance(node, RepeatNode):
        return node.sources[0] if (node.groups, node.times) == (count, times) else None
    found = order_of(node)
    if found is None or not np.array_equal(found[1], np.repeat(np.arange(count), times)):
        return None
    return found[0]


def _is_zero(node: Node) -> bool:
    return (
        isinstance(node, LinearNode)
        and not node.weight.array.any()
        and (node.bias is None or not node.bias.array.any())
    )


def _is_code(node: Node) -> bool:
    return isinstance(node, EmbeddingNode) and node.one_hot


def _parts(node: Node) -> tuple[Node, ...]:
    """The values that lie side by side in a value, nested ones too."""
    if not isinstance(node, ConcatNode):
        return (node,)
    return tuple(part for source in node.sources for part in _parts(source))


def _one(ids: Node, at: int) -> Node:
    if ids.width == 1:
        return ids
    if isinstance(ids, FieldNode):
        return FieldNode(ids.place, (), 1, ids.cells[at : at + 1], ids.kind)
    return SliceNode(ids.place, (ids,), 1, at)
