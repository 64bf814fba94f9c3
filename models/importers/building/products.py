# SPDX-License-Identifier: Apache-2.0
"""Products of rows with weights, part by part where there are several, and of two values of one row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.arithmetic import combine
from fused_mlp.models.importers.building.features import reduce
from fused_mlp.models.importers.building.nodes import (
    AffineNode,
    CombineNode,
    ConcatNode,
    Constant,
    DotNode,
    ElementNode,
    Indices,
    LinearNode,
    Node,
    RepeatNode,
    SliceNode,
    SoftmaxNode,
    WhereNode,
)
from fused_mlp.models.importers.building.rows import Rows, aligned, permuted, whole
from fused_mlp.models.importers.building.selection import NodeGraph

ATTENTION = "attention is no step of an MLP: import the feed-forward block alone, such as model.layers[0].mlp"
_MAX_PRODUCTS = 1 << 18  # of computed values, for one row
# Nodes between the scores and a softmax, and between its result and the values that it weighs.
_BETWEEN = (AffineNode, CombineNode, ConcatNode, ElementNode, RepeatNode, SliceNode, SoftmaxNode, WhereNode)


def linear(graph: NodeGraph, x: Rows, weight: Constant, bias: Constant | None = None) -> Rows:
    """Multiplies the last axis. weight: (out, in), bias: (out,) or one value."""
    if len(weight.shape) != 2 or 0 in weight.shape:
        raise ModelLoadError(f"expected a weight of shape (out, in), got {weight.shape}")
    out, width = weight.shape
    if bias is not None and bias.shape != (out,):
        if bias.array.size not in (1, out):
            raise ModelLoadError(f"expected a bias of shape ({out},), got {bias.shape}")
        bias = bias.of(np.broadcast_to(bias.array.reshape(-1), (out,)))
    if x.shape[-1] != width or x.rows_at == x.index.ndim - 1:
        raise ModelLoadError(f"expected {width} features, got {x.shape[-1]}")
    groups = x.index.reshape(-1, width)
    if len(groups) > 1 and (np.diff(groups, axis=1) != 1).any():  # put in order once, not part by part
        x = whole(graph.flat(x), x.shape, x.rows_at)
        groups = x.index.reshape(-1, width)
    made = [_linear(graph, x.node, group, weight, bias) for group in graph.parts(list(groups))]
    return whole(graph.side_by_side(made), (*x.shape[:-1], out), x.rows_at)


def matmul(graph: NodeGraph, left: Rows | Constant, right: Rows | Constant) -> Rows:
    """As numpy's, of rows and a constant of any number of axes, or of two values of one row."""
    if isinstance(left, Rows) and isinstance(right, Rows):
        return _pairwise(graph, left, right)
    if isinstance(right, Rows):
        assert isinstance(left, Constant)
        if len(left.shape) == 1:  # a vector times (..., in, rows)
            return matmul(graph, _swapped(right), left)
        return _swapped(matmul(graph, _swapped(right), left.of(left.array.swapaxes(-1, -2))))
    assert isinstance(left, Rows)
    matrix = right.array
    if matrix.ndim == 1:
        made = linear(graph, left, right.of(matrix.reshape(1, -1)))
        return Rows(made.node, made.index[..., 0], made.rows_at)
    if matrix.ndim == 2:
        return linear(graph, left, right.matrix_transposed)
    if left.index.ndim < 2 or left.rows_at < left.index.ndim - 2:
        raise ModelLoadError("a batched product over the rows is no step of an MLP")
    batch = np.broadcast_shapes(left.shape[:-2], matrix.shape[:-2])
    index = np.broadcast_to(left.index, (*batch, *left.shape[-2:]))
    matrices = np.broadcast_to(matrix, (*batch, *matrix.shape[-2:]))
    nodes = []
    for at in graph.parts(list(np.ndindex(*batch))):
        nodes.append(linear(graph, Rows(left.node, index[at], 0), right.of(matrices[at].T)).node)
    shape = (*batch, left.shape[-2], matrix.shape[-1])
    return whole(graph.side_by_side(nodes), shape, len(shape) - 2)


def _pairwise(graph: NodeGraph, left: Rows, right: Rows) -> Rows:
    """A matrix of one row times another: (rows, n, k) @ (rows, k, m)."""
    if left.index.ndim < 2 or right.index.ndim < 2 or left.shape[-1] != right.shape[-2]:
        raise ModelLoadError(f"expected two matrices for each row, got {left.shape} and {right.shape}")
    if left.rows_at >= left.index.ndim - 2 or right.rows_at >= right.index.ndim - 2:
        raise ModelLoadError(
            "a product of two computed matrices that mixes the rows (attention) is no step of an MLP: "
            "import the feed-forward block alone, such as model.layers[0].mlp"
        )
    check_attention(graph, left, right)
    turned = _swapped(right)
    count, length = left.shape[-2:]
    if left.node is right.node and left.index.size == count * length and count > 1 and _same(left, turned):
        return _dots(graph, left, count)
    return summed_products(
        graph,
        Rows(left.node, left.index[..., :, None, :], left.rows_at),
        Rows(turned.node, turned.index[..., None, :, :], turned.rows_at),
        (-1,),
    )


def summed_products(graph: NodeGraph, left: Rows, right: Rows, axes: Sequence[int]) -> Rows:
    """(left * right).sum(axes)."""
    left, right = aligned(left, right)
    if left.index.size > _MAX_PRODUCTS:
        raise ModelLoadError(
            f"{left.index.size} products of computed values: expected at most {_MAX_PRODUCTS} for one row"
        )
    product = combine(graph, "multiply", left, right)
    made = reduce(graph, "sum", product, axes) if axes else product
    graph.product_numbers.add(made.node.number)
    return made


def _dots(graph: NodeGraph, vectors: Rows, count: int) -> Rows:
    """All products of some vectors with each other."""
    first, second = np.tril_indices(count)
    made = DotNode(graph.place, (graph.flat(vectors),), first.size, count, itself=True)
    node = graph.nodes.setdefault(("dots", made.sources[0].number, count), made)
    graph.product_numbers.add(node.number)
    index = np.zeros((count, count), np.intp)
    index[first, second] = index[second, first] = np.arange(first.size)
    return Rows(node, index.reshape((*vectors.shape[:-2], count, count)), vectors.rows_at)


def check_attention(graph: NodeGraph, *values: Rows) -> None:
    if any(_is_attention(graph, each.node) for each in values):
        raise ModelLoadError(ATTENTION)


def _is_attention(graph: NodeGraph, node: Node, weighed: bool = False) -> bool:
    """Whether it is a softmax of products of computed values."""
    if node.number in graph.product_numbers:
        return weighed
    if not isinstance(node, _BETWEEN) and not (isinstance(node, LinearNode) and node.role):
        return False
    weighed = weighed or isinstance(node, SoftmaxNode)
    return any(_is_attention(graph, source, weighed) for source in node.sources)


def _linear(graph: NodeGraph, node: Node, order: Indices, weight: Constant, bias: Constant | None) -> Node:
    runs = int(np.count_nonzero(np.diff(order) != 1))
    if (
        runs > 0 and order.size * 2 >= node.width and not (graph.apart and np.unique(order).size < node.width)
    ):  # the order, and repetitions, become part of the weights
        matrix = np.zeros((weight.shape[0], node.width))
        np.add.at(matrix.T, order, weight.exact.T)
        weight = weight.of(matrix)
    else:
        node = graph.gather(node, order)
    made = LinearNode(graph.place, (node,), weight.shape[0], weight, bias)
    return graph.once(("linear", node.number), (weight, bias), made)


def _same(left: Rows, right: Rows) -> bool:
    return (
        left.shape == right.shape
        and left.rows_at == right.rows_at
        and bool((left.index == right.index).all())
    )


def _swapped(x: Rows) -> Rows:
    """With its last two axes exchanged."""
    axes = list(range(x.index.ndim))
    axes[-2:] = axes[-1], axes[-2]
    return permuted(x, axes)
