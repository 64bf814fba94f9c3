# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of rows with rows, constants and numbers. A constant per feature is a scale and a shift; two functions of
one value are one; a value divided by its length is a norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.functions import apply, element, function, made_element, one_value
from fused_mlp.models.importers.building.nodes import (
    AffineNode,
    CombineNode,
    CompareNode,
    Constant,
    ElementNode,
    Node,
    NormNode,
    WhereNode,
    affine_of,
    number,
)
from fused_mlp.models.importers.building.norms import normalized
from fused_mlp.models.importers.building.rows import Rows, aligned, whole
from fused_mlp.models.importers.building.selection import NodeGraph
from fused_mlp.models.program import formula
from fused_mlp.models.program.activations import PRIMITIVES, Floats
from fused_mlp.models.program.formula import FormulaError
from fused_mlp.models.program.spec import Combination, Comparison

Operand = Rows | Constant | float


def arithmetic(graph: NodeGraph, op: Combination, left: Operand, right: Operand) -> Rows:
    left, right = _scalar(graph, left), _scalar(graph, right)
    if isinstance(left, Rows) and isinstance(right, Rows):
        return combine(graph, op, left, right)
    if isinstance(left, Rows):
        if isinstance(right, Constant):
            return with_vector(graph, op, left, right)
        return apply(graph, left, formula.binary(op, formula.x(), formula.constant(cast(float, right))))
    assert isinstance(right, Rows)
    if isinstance(left, Constant):
        return _from_vector(graph, op, left, right)
    return apply(graph, right, formula.binary(op, formula.constant(left), formula.x()))


def compare(graph: NodeGraph, op: Comparison, left: Operand, right: Operand) -> Rows:
    """0 or 1. A comparison of a value with itself finds NaN, which no function of one value tells."""
    pair = (_number(left), _number(right))
    rows = [each for each in pair if isinstance(each, Rows)]
    itself = len(rows) == 2 and rows[0].node is rows[1].node and np.array_equal(rows[0].index, rows[1].index)
    return _chosen(graph, CompareNode, None if itself else getattr(np, op), pair, op)


def is_nan(graph: NodeGraph, x: Rows) -> Rows:
    return compare(graph, "not_equal", x, x)


def fill_nan(graph: NodeGraph, x: Operand, other: Operand) -> Operand:
    """`other` where x is NaN."""
    if isinstance(x, float):
        return other if np.isnan(x) else x
    if isinstance(x, Constant):
        return x
    return _chosen(graph, WhereNode, None, (is_nan(graph, x), _number(other), x))


def extreme(graph: NodeGraph, op: Literal["maximum", "minimum"], left: Operand, right: Operand) -> Rows:
    """fmax and fmin: of a number and NaN, the number."""
    first, second = fill_nan(graph, left, right), fill_nan(graph, right, left)
    return arithmetic(graph, op, first, second)


def where(graph: NodeGraph, condition: Operand, left: Operand, right: Operand) -> Rows:
    """A choice; a function of one value if it is one that is known, or a product with a constant mask."""
    if isinstance(condition, Constant) and not graph.apart:
        mask = condition.array.astype(np.float64)
        chosen = _masked(graph, left, condition.of(mask))
        other = _masked(graph, right, condition.of(1 - mask))
        return arithmetic(graph, "add", chosen, other)
    return _chosen(graph, WhereNode, np.where, tuple(map(_number, (condition, left, right))))


def prelu(graph: NodeGraph, x: Rows, slope: Operand, axis: int = 1) -> Rows:
    slope = _scalar(graph, slope)
    if isinstance(slope, float):
        return function(graph, "leaky_relu", x, slope)
    assert isinstance(slope, Constant)
    shape = [1] * x.index.ndim
    shape[x.axis(axis)] = slope.array.size
    below = apply(graph, x, formula.binary("minimum", formula.x(), formula.constant(0.0)))
    scaled = with_vector(graph, "multiply", below, replace(slope, array=slope.array.reshape(shape)))
    return arithmetic(graph, "add", function(graph, "relu", x), scaled)


def _scalar(graph: NodeGraph, operand: Operand) -> Operand:
    """A constant of one value is a number, unless it is to be trained."""
    if isinstance(operand, Constant) and graph.trainable and operand.origin and not operand.fixed:
        return operand
    return _number(operand)


def combine(graph: NodeGraph, op: Combination, left: Rows, right: Rows) -> Rows:
    # Parts of a value are steps of their own by now where a function was applied to one of them: g * sigmoid(g).
    left, right = map(graph.compact, aligned(left, right))
    found = one_value(left, right)
    if found is not None:
        base, ((a, a_values), (b, b_values)) = found
        tree = None if a is None or b is None else _try(op, a, b)
        if tree is not None or a is None or b is None:
            node = element(graph, base.node, tree, lambda x: PRIMITIVES[op](a_values(x), b_values(x)))
            if isinstance(node, ElementNode) and node.tree is None:
                node.explicit = _combined(graph, op, left.node, right.node)
            return base.of(node)
    if op in ("multiply", "divide"):
        for first, second in ((left, right), (right, left)) if op == "multiply" else ((left, right),):
            norm = _normalized(graph, op, first, second)
            if norm is not None:
                return norm
    if left.is_permuted and np.array_equal(left.index, right.index) and left.node.width == right.node.width:
        return left.of(_combined(graph, op, left.node, right.node))
    return whole(_combined(graph, op, graph.flat(left), graph.flat(right)), left.shape, left.rows_at)


def _combined(graph: NodeGraph, op: Combination, left: Node, right: Node) -> Node:
    key = (op, left.number, right.number)
    return graph.nodes.setdefault(key, CombineNode(graph.place, (left, right), left.width, op))


def _normalized(graph: NodeGraph, op: Literal["multiply", "divide"], x: Rows, length: Rows) -> Rows | None:
    """A norm that is written out, also with its weight in front: (weight * x) / length."""
    node, weight = x.node, None
    if isinstance(node, AffineNode) and node.shift is None:
        weight, node = node.scale, node.sources[0]
    found = normalized(op, x.of(node), length)
    if found is None:
        return None
    kind, source, eps, factor = found
    made: Node = NormNode(graph.place, (source,), source.width, kind, eps)
    if factor != 1:
        made = _affine(graph, made, number(factor, made.width), None)
    return x.of(made if weight is None else _affine(graph, made, weight, None))


def _chosen(
    graph: NodeGraph,
    kind: type[CompareNode] | type[WhereNode],
    compute: Callable[..., Floats] | None,
    operands: tuple[Operand, ...],
    *options: Any,
) -> Rows:
    """A comparison or a choice. Of functions of one value it is one, too, until it is known whether some formula
    spells it. compute: None if it is none."""
    base = _explicit(graph, kind, operands, options)
    given = [each for each in operands if isinstance(each, Rows)]
    if compute is None or any(isinstance(each, Constant) for each in operands):
        return base
    shaped = [graph.compact(aligned(given[0], each)[1]) for each in given]
    found = one_value(*shaped)
    if found is None or found[0].index.size != base.index.size:
        return base
    of, functions = found
    remaining = iter(functions)
    parts = [_always(each) if isinstance(each, float) else next(remaining)[1] for each in operands]
    of = graph.compact(of)
    made = made_element(
        graph, of.node, None, lambda x: np.asarray(compute(*(part(x) for part in parts)), np.float64)
    )
    if isinstance(made, ElementNode) and made.tree is None:
        if not of.is_whole:
            return base
        made.explicit = base.node
    return of.of(made)


def _explicit(
    graph: NodeGraph,
    kind: type[CompareNode] | type[WhereNode],
    operands: tuple[Operand, ...],
    options: tuple[Any, ...],
) -> Rows:
    """As a step, of values of one width."""
    like = next(each for each in operands if isinstance(each, Rows))
    for each in operands:
        like = aligned(like, each)[0] if isinstance(each, Rows) else _like(graph, like, each)
    nodes = []
    for each in operands:
        if isinstance(each, Rows):
            nodes.append(graph.flat(aligned(each, like)[0]))
        else:
            array = each.exact if isinstance(each, Constant) else np.array(each)
            filled = np.broadcast_to(array, like.shape).reshape(-1)
            nodes.append(graph.constant_node(Constant(filled, fixed=not isinstance(each, Constant))))
    key = (kind, *(node.number for node in nodes), *options)
    node = graph.nodes.setdefault(key, kind(graph.place, tuple(nodes), nodes[0].width, *options))
    return whole(node, like.shape, like.rows_at)


def _like(graph: NodeGraph, x: Rows, other: Constant | float) -> Rows:
    """x in the shape that it has beside a constant."""
    return x if isinstance(other, float) else _fitted(graph, x, other)[0]


def _masked(graph: NodeGraph, value: Operand, mask: Constant) -> Operand:
    if isinstance(value, Rows):
        return arithmetic(graph, "multiply", value, mask)
    given = value if isinstance(value, Constant) else number(value, 1)
    return mask.of(np.where(mask.exact != 0, given.exact, 0.0), given)


def with_vector(graph: NodeGraph, op: Combination, x: Rows, vector: Constant) -> Rows:
    if np.isinf(vector.exact).any():
        raise ModelLoadError(
            "a constant with infinite values, such as a mask of -inf, is not taken: write a large number, -1e9"
        )
    x, constant = _fitted(graph, x, vector)
    if op in ("maximum", "minimum"):
        return x.of(_combined(graph, op, x.node, graph.constant_node(constant)))
    if op == "multiply":
        return x.of(_affine(graph, x.node, constant, None))
    if op == "add":
        return x.of(_affine(graph, x.node, None, constant))
    if op == "subtract":
        return x.of(_affine(graph, x.node, None, constant.of(-constant.exact)))
    with np.errstate(all="ignore"):
        return x.of(_affine(graph, x.node, constant.of(1 / constant.exact), None))


def _from_vector(graph: NodeGraph, op: Combination, vector: Constant, x: Rows) -> Rows:
    if op == "subtract":
        return with_vector(graph, "add", arithmetic(graph, "multiply", x, -1.0), vector)
    if op == "divide":
        return with_vector(graph, "multiply", arithmetic(graph, "divide", 1.0, x), vector)
    return with_vector(graph, op, x, vector)


def _fitted(graph: NodeGraph, x: Rows, vector: Constant) -> tuple[Rows, Constant]:
    """x in the shape of both, and the vector in the order of its node's features."""
    array = vector.array
    ndim = max(array.ndim, x.index.ndim)
    ahead = ndim - x.index.ndim
    rows_at = x.rows_at + ahead
    array = array.reshape((1,) * (ndim - array.ndim) + array.shape)
    if array.shape[rows_at] != 1:
        raise ModelLoadError(f"a constant of shape {vector.shape} has a value of its own for each row")
    shape = np.broadcast_shapes(x.shape, array.shape)
    x = Rows(x.node, np.broadcast_to(x.index.reshape((1,) * ahead + x.shape), shape), rows_at)
    array = np.broadcast_to(array, shape).reshape(-1)
    if not x.is_permuted:
        x = whole(graph.flat(x), x.shape, rows_at)
    if x.is_whole:
        kept = vector.array.size in (1, array.size)
        return x, replace(vector, array=array, origin=vector.origin if kept else "")
    ordered = np.empty_like(array)
    ordered[x.order] = array
    return x, vector.of(ordered)


def _affine(graph: NodeGraph, node: Node, scale: Constant | None, shift: Constant | None) -> Node:
    """node * scale + shift, merged with a scale and shift before it."""
    if isinstance(node, ElementNode) and (found := affine_of(node.tree)) is not None:
        factor, offset = (number(each, node.width) for each in found)
        return _affine(graph, node.sources[0], *_composed(factor, offset, scale, shift))
    if isinstance(node, AffineNode):
        composed = _composed(node.scale, node.shift, scale, shift)
        return AffineNode(graph.place, node.sources, node.width, *composed)
    return AffineNode(graph.place, (node,), node.width, scale, shift)


def _number(operand: Operand) -> Operand:
    if isinstance(operand, Constant) and operand.array.size == 1:
        return float(operand.exact.reshape(()))
    return operand if isinstance(operand, (Rows, Constant)) else float(operand)


def _always(value: float) -> Callable[[Floats], Floats]:
    return lambda x: np.asarray(value)


def _try(op: str, left: formula.Node, right: formula.Node) -> formula.Node | None:
    try:
        tree = formula.binary(op, left, right)
        if tree.op not in ("constant", "x"):
            formula.of(tree)
    except FormulaError:
        return None
    return tree


def _composed(
    first_scale: Constant | None,
    first_shift: Constant | None,
    scale: Constant | None,
    shift: Constant | None,
) -> tuple[Constant | None, Constant | None]:
    """One scale and shift after another; what nothing is done to keeps its origin."""
    if scale is not None:
        first_scale = scale if first_scale is None else first_scale.of(first_scale.exact * scale.exact, scale)
        first_shift = None if first_shift is None else first_shift.of(first_shift.exact * scale.exact, scale)
    if shift is not None:
        first_shift = shift if first_shift is None else first_shift.of(first_shift.exact + shift.exact, shift)
    return first_scale, first_shift
