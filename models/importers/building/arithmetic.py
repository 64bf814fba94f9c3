# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of rows with rows, constants and numbers. A constant per feature is a scale and a shift; two functions of
one value are one; a value divided by its length is a norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

import numpy as np

from fused_mlp.models import formula
from fused_mlp.models.activations import PRIMITIVES, Floats
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.formula import FormulaError
from fused_mlp.models.importers.building.functions import Functions
from fused_mlp.models.importers.building.nodes import (
    AffineNode,
    CombineNode,
    Constant,
    ElementNode,
    Node,
    NormNode,
    affine_of,
    number,
)
from fused_mlp.models.importers.building.norms import normalized
from fused_mlp.models.importers.building.rows import Rows, aligned, whole
from fused_mlp.models.spec import Combination

Operand = Rows | Constant | float
_COMPARISONS: dict[str, Callable[[Floats, Floats], Floats]] = {
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}


class Arithmetic(Functions):
    def arithmetic(self, op: Combination, left: Operand, right: Operand) -> Rows:
        left, right = self._scalar(left), self._scalar(right)
        if isinstance(left, Rows) and isinstance(right, Rows):
            return self._combine(op, left, right)
        if isinstance(left, Rows):
            if isinstance(right, Constant):
                return self._with_vector(op, left, right)
            return self.apply(left, formula.binary(op, formula.x(), formula.constant(cast(float, right))))
        assert isinstance(right, Rows)
        if isinstance(left, Constant):
            return self._from_vector(op, left, right)
        return self.apply(right, formula.binary(op, formula.constant(left), formula.x()))

    def compare(self, op: str, left: Operand, right: Operand) -> Rows:
        """0 or 1, for `where` and for products that are a known function: greater, less_equal, equal, ..."""
        return self._by_value(_COMPARISONS[op], left, right)

    def where(self, condition: Operand, left: Operand, right: Operand) -> Rows:
        """Of functions of one value, if the result is a function that is known; or by a constant mask."""
        if isinstance(condition, Constant):
            mask = condition.array.astype(np.float64)
            chosen = self._masked(left, condition.of(mask))
            other = self._masked(right, condition.of(1 - mask))
            return self.arithmetic("add", chosen, other)
        return self._by_value(np.where, condition, left, right)

    def prelu(self, x: Rows, slope: Operand, axis: int = 1) -> Rows:
        slope = self._scalar(slope)
        if isinstance(slope, float):
            return self.function("leaky_relu", x, slope)
        assert isinstance(slope, Constant)
        shape = [1] * x.index.ndim
        shape[x.axis(axis)] = slope.array.size
        below = self.apply(x, formula.binary("minimum", formula.x(), formula.constant(0.0)))
        scaled = self._with_vector("multiply", below, replace(slope, array=slope.array.reshape(shape)))
        return self.arithmetic("add", self.function("relu", x), scaled)

    def _scalar(self, operand: Operand) -> Operand:
        """A constant of one value is a number, unless it is to be trained."""
        if isinstance(operand, Constant) and self._trainable and operand.origin and not operand.fixed:
            return operand
        return _number(operand)

    def _combine(self, op: Combination, left: Rows, right: Rows) -> Rows:
        # Parts of a value are steps of their own by now where a function was applied to one of them: g * sigmoid(g).
        left, right = map(self._compact, aligned(left, right))
        found = self._one_value(left, right)
        if found is not None:
            base, ((a, a_values), (b, b_values)) = found
            tree = None if a is None or b is None else _try(op, a, b)
            if tree is not None or a is None or b is None:
                node = self._element(base.node, tree, lambda x: PRIMITIVES[op](a_values(x), b_values(x)))
                return base.of(node)
        if op in ("multiply", "divide"):
            for first, second in ((left, right), (right, left)) if op == "multiply" else ((left, right),):
                norm = self._normalized(op, first, second)
                if norm is not None:
                    return norm
        if (
            left.is_permuted
            and np.array_equal(left.index, right.index)
            and left.node.width == right.node.width
        ):
            return left.of(self._combined(op, left.node, right.node))
        return whole(self._combined(op, self.flat(left), self.flat(right)), left.shape, left.rows_at)

    def _combined(self, op: Combination, left: Node, right: Node) -> Node:
        key = (op, left.number, right.number)
        return self._nodes.setdefault(key, CombineNode(self._place, (left, right), left.width, op))

    def _normalized(self, op: Literal["multiply", "divide"], x: Rows, length: Rows) -> Rows | None:
        """A norm that is written out, also with its weight in front: (weight * x) / length."""
        node, weight = x.node, None
        if isinstance(node, AffineNode) and node.shift is None:
            weight, node = node.scale, node.sources[0]
        found = normalized(op, x.of(node), length)
        if found is None:
            return None
        kind, source, eps, factor = found
        made: Node = NormNode(self._place, (source,), source.width, kind, eps)
        if factor != 1:
            made = self._affine(made, number(factor, made.width), None)
        return x.of(made if weight is None else self._affine(made, weight, None))

    def _by_value(self, compute: Callable[..., Floats], *operands: Operand) -> Rows:
        """A function of one value that no formula spells."""
        given = [_number(each) for each in operands]
        if any(isinstance(each, Constant) for each in given):
            raise ModelLoadError("a condition with a constant per feature is no step of an MLP")
        rows = [each for each in given if isinstance(each, Rows)]
        shaped = [self._compact(aligned(rows[0], each)[1]) for each in rows]
        found = self._one_value(*shaped)
        if found is None:
            raise ModelLoadError("a choice between two values is no step of an MLP: maximum and minimum are")
        base, functions = found
        remaining = iter(functions)
        parts = [_always(each) if isinstance(each, float) else next(remaining)[1] for each in given]
        base = self._compact(base)
        node = self._made_element(
            base.node, None, lambda x: np.asarray(compute(*(part(x) for part in parts)), np.float64)
        )
        return base.of(node)

    def _masked(self, value: Operand, mask: Constant) -> Operand:
        if isinstance(value, Rows):
            return self.arithmetic("multiply", value, mask)
        given = value if isinstance(value, Constant) else number(value, 1)
        return mask.of(np.where(mask.exact != 0, given.exact, 0.0), given)

    def _with_vector(self, op: Combination, x: Rows, vector: Constant) -> Rows:
        if np.isinf(vector.exact).any():
            raise ModelLoadError(
                "a constant with infinite values, such as a mask of -inf, is not taken: write a large number, -1e9"
            )
        x, constant = self._fitted(x, vector)
        if op in ("maximum", "minimum"):
            return x.of(self._combined(op, x.node, self._constant_node(constant)))
        if op == "multiply":
            return x.of(self._affine(x.node, constant, None))
        if op == "add":
            return x.of(self._affine(x.node, None, constant))
        if op == "subtract":
            return x.of(self._affine(x.node, None, constant.of(-constant.exact)))
        with np.errstate(all="ignore"):
            return x.of(self._affine(x.node, constant.of(1 / constant.exact), None))

    def _from_vector(self, op: Combination, vector: Constant, x: Rows) -> Rows:
        if op == "subtract":
            return self._with_vector("add", self.arithmetic("multiply", x, -1.0), vector)
        if op == "divide":
            return self._with_vector("multiply", self.arithmetic("divide", 1.0, x), vector)
        return self._with_vector(op, x, vector)

    def _fitted(self, x: Rows, vector: Constant) -> tuple[Rows, Constant]:
        """x in the shape of both, and the vector in the order of its node's features."""
        array, ahead = vector.array, 0
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
            x = whole(self.flat(x), x.shape, rows_at)
        if x.is_whole:
            kept = vector.array.size in (1, array.size)
            return x, replace(vector, array=array, origin=vector.origin if kept else "")
        ordered = np.empty_like(array)
        ordered[x.order] = array
        return x, vector.of(ordered)

    def _affine(self, node: Node, scale: Constant | None, shift: Constant | None) -> Node:
        """node * scale + shift, merged with a scale and shift before it."""
        if isinstance(node, ElementNode) and (found := affine_of(node.tree)) is not None:
            factor, offset = (number(each, node.width) for each in found)
            return self._affine(node.sources[0], *_composed(factor, offset, scale, shift))
        if isinstance(node, AffineNode):
            composed = _composed(node.scale, node.shift, scale, shift)
            return AffineNode(self._place, node.sources, node.width, *composed)
        return AffineNode(self._place, (node,), node.width, scale, shift)


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
