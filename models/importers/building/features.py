# SPDX-License-Identifier: Apache-2.0
"""Operations over the features of a row: softmax, norms, reductions. Over the rows they are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.arithmetic import arithmetic, combine, with_vector
from fused_mlp.models.importers.building.functions import apply, function
from fused_mlp.models.importers.building.nodes import (
    Constant,
    EmbeddingNode,
    Indices,
    LinearNode,
    Node,
    NormNode,
    ReduceNode,
    SoftmaxNode,
)
from fused_mlp.models.importers.building.rows import Rows, permuted, reshaped, whole
from fused_mlp.models.importers.building.selection import LARGE_MATRIX, MAX_MATRIX, NodeGraph
from fused_mlp.models.program import formula
from fused_mlp.models.program.spec import Combination


def softmax(graph: NodeGraph, x: Rows, axis: int, *, log: bool = False) -> Rows:
    def make(node: Node) -> Node:
        made = SoftmaxNode(graph.place, (node,), node.width, log)
        return graph.once(("softmax", node.number, log), (), made)

    return _over(graph, x, (axis,), make)


def norm(
    graph: NodeGraph,
    kind: Literal["layer", "rms", "l2"],
    x: Rows,
    axes: Sequence[int],
    *,
    eps: float,
    weight: Constant | None = None,
    bias: Constant | None = None,
) -> Rows:
    """weight, bias: in the shape of the axes."""
    flat_weight, flat_bias = map(_flattened, (weight, bias))

    def make(node: Node) -> Node:
        made = NormNode(graph.place, (node,), node.width, kind, eps, flat_weight, flat_bias)
        return graph.once(("norm", node.number, kind, eps), (flat_weight, flat_bias), made)

    return _over(graph, x, axes, make)


def batch_norm(
    graph: NodeGraph,
    x: Rows,
    mean: Constant,
    variance: Constant,
    *,
    weight: Constant | None,
    bias: Constant | None,
    eps: float,
) -> Rows:
    """Normalizes axis 1 with the statistics of training."""
    scale = 1 / np.sqrt(variance.exact + eps)
    if weight is not None:
        scale = scale * weight.exact
    shift = -mean.exact * scale
    if bias is not None:
        shift = shift + bias.exact
    if x.rows_at != 0 or x.index.ndim < 2 or x.shape[1] != scale.size:
        raise ModelLoadError(f"expected {scale.size} features, got shape {('rows', *x.shape[1:])}")
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    fixed = all(each is None or each.fixed for each in (mean, variance, weight, bias))
    scaled = with_vector(graph, "multiply", x, Constant(scale.reshape(shape), fixed=fixed))
    return with_vector(graph, "add", scaled, Constant(shift.reshape(shape), fixed=fixed))


def group_norm(
    graph: NodeGraph, x: Rows, groups: int, *, eps: float, weight: Constant | None, bias: Constant | None
) -> Rows:
    """Normalizes neighbours on axis 1 in groups, with all axes behind them. weight, bias: one for each position."""
    if x.rows_at != 0 or x.index.ndim < 2 or x.shape[1] % groups:
        raise ModelLoadError(f"expected (rows, features) in {groups} groups, got {('rows', *x.shape[1:])}")
    parts = reshaped(x, (x.shape[0], groups, -1), 0)
    made = reshaped(norm(graph, "layer", parts, [-1], eps=eps), x.shape, 0)
    return scale_channels(graph, made, weight, bias)


def scale_channels(graph: NodeGraph, x: Rows, weight: Constant | None, bias: Constant | None) -> Rows:
    """x * weight + bias, one of each for each position of axis 1."""
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    if weight is not None:
        x = arithmetic(graph, "multiply", x, replace(weight, array=weight.array.reshape(shape)))
    if bias is not None:
        x = arithmetic(graph, "add", x, replace(bias, array=bias.array.reshape(shape)))
    return x


def reduce(
    graph: NodeGraph,
    kind: Literal["sum", "mean", "max", "min", "prod"],
    x: Rows,
    axes: Sequence[int],
    *,
    keep: bool = False,
) -> Rows:
    """Over features; over the rows it is refused."""
    at = graph.axes(x, axes)
    kept = tuple(1 if axis in at else size for axis, size in enumerate(x.shape))
    moved = np.moveaxis(x.index, at, range(-len(at), 0))
    index = moved.reshape(-1, math.prod(x.shape[axis] for axis in at))
    if kind in ("sum", "mean"):
        node = _summed(graph, x.node, index, kind)
        made = whole(node, kept, x.rows_at)
    else:
        if kind == "prod":
            found = _product(graph, x.node, index)
        else:
            found = _extreme(graph, "maximum" if kind == "max" else "minimum", x.node, index)
        made = Rows(found.node, found.index.reshape(kept), x.rows_at)
    if keep:
        return made
    shape = [size for axis, size in enumerate(made.shape) if axis not in at]
    return Rows(made.node, made.index.reshape(shape), x.rows_at - sum(axis < x.rows_at for axis in at))


def variance(
    graph: NodeGraph, x: Rows, axes: Sequence[int], correction: float, *, keep: bool = False
) -> Rows:
    count = math.prod(x.shape[axis] for axis in graph.axes(x, axes))
    if count <= correction:
        raise ModelLoadError(f"the variance of {count} values with correction {correction} is not defined")
    centred = arithmetic(graph, "subtract", x, reduce(graph, "mean", x, axes, keep=True))
    squares = apply(graph, centred, formula.call("square", formula.x()))
    total = reduce(graph, "sum" if correction else "mean", squares, axes, keep=keep)
    return arithmetic(graph, "multiply", total, 1 / (count - correction)) if correction else total


def log_sum_exp(graph: NodeGraph, x: Rows, axes: Sequence[int], *, keep: bool = False) -> Rows:
    """With the largest feature taken out, so that nothing overflows: m + log(sum(exp(x - m)))."""
    largest = reduce(graph, "max", x, axes, keep=True)
    below = function(graph, "exp", arithmetic(graph, "subtract", x, largest))
    total = function(graph, "log", reduce(graph, "sum", below, axes, keep=keep))
    return arithmetic(graph, "add", largest if keep else reduce(graph, "max", x, axes), total)


def _extreme(graph: NodeGraph, op: Combination, node: Node, index: Indices) -> Rows:
    """index: (results, features). By halves, which overlap where their number is odd: slices, since what they are
    halves of has all results of one feature side by side."""
    if op == "maximum" and isinstance(node, EmbeddingNode) and index.size == node.width and len(index) > 1:
        return whole(_reduced(graph, node, index, "max"), (len(index), 1))
    made = whole(graph.gather(node, index.T.reshape(-1)), index.T.shape)
    while (count := made.shape[0]) > 1:
        half = (count + 1) // 2
        left, right = (Rows(made.node, made.index[part]) for part in (slice(half), slice(-half, None)))
        made = combine(graph, op, left, right)
    return made


def _product(graph: NodeGraph, node: Node, index: Indices) -> Rows:
    made = Rows(node, index[:, :1])
    for position in graph.parts(range(1, index.shape[1])):
        made = combine(graph, "multiply", made, Rows(node, index[:, position : position + 1]))
    return made


def _summed(graph: NodeGraph, node: Node, index: Indices, kind: Literal["sum", "mean"]) -> Node:
    """index: (results, summands)."""
    key = ("sum", kind, node.number, index.shape, index.tobytes())
    if key not in graph.nodes:
        graph.nodes[key] = _made_sum(graph, node, index, kind)
    return graph.nodes[key]


def _made_sum(graph: NodeGraph, node: Node, index: Indices, kind: Literal["sum", "mean"]) -> Node:
    if index.size < node.width:
        node, index = graph.gather(node, index.reshape(-1)), np.arange(index.size).reshape(index.shape)
    large = index.shape[0] * node.width >= LARGE_MATRIX or isinstance(node, EmbeddingNode)
    if index.shape[0] > 1 and (large or graph.apart):
        return _reduced(graph, node, index, kind)
    if index.shape[0] * node.width > MAX_MATRIX:
        raise ModelLoadError(f"{index.shape[0]} sums over {node.width} features: too large a matrix")
    matrix = np.zeros((index.shape[0], node.width))
    np.add.at(
        matrix, (np.arange(index.shape[0])[:, None], index), 1.0 if kind == "sum" else 1 / index.shape[1]
    )
    alone = index.shape[0] == 1 and bool((matrix == matrix[0, 0]).all())
    return LinearNode(
        graph.place, (node,), index.shape[0], Constant(matrix, fixed=True), None, kind if alone else ""
    )


def _reduced(graph: NodeGraph, node: Node, index: Indices, mode: Literal["sum", "mean", "max"]) -> Node:
    """As a step of its own, over vectors that lie side by side. index: (results, summands)."""
    results, summands = index.shape
    whole_order = np.arange(node.width)
    if node.width == index.size and np.array_equal(index.T.reshape(-1), whole_order):
        return ReduceNode(graph.place, (node,), results, summands, mode, "vectors")
    return ReduceNode(
        graph.place, (graph.gather(node, index.reshape(-1)),), results, results, mode, "features"
    )


def _over(graph: NodeGraph, x: Rows, axes: Sequence[int], make: Callable[[Node], Node]) -> Rows:
    """A step over some axes of features, part by part where there are others beside them."""
    at = graph.axes(x, axes)
    front = [axis for axis in range(x.index.ndim) if axis not in at]
    moved = permuted(x, [*front, *at])
    parts = moved.index.reshape(-1, math.prod(x.shape[axis] for axis in at))
    nodes = [make(graph.gather(x.node, part)) for part in graph.parts(list(parts))]
    made = whole(graph.side_by_side(nodes), moved.shape, moved.rows_at)
    back = np.argsort([*front, *at]).tolist()
    return permuted(made, back)


def _flattened(constant: Constant | None) -> Constant | None:
    if constant is None or constant.array.ndim == 1:
        return constant
    return replace(constant, array=constant.array.reshape(-1))
