# SPDX-License-Identifier: Apache-2.0
"""What goes over the features of a row: softmax, norms, reductions. Over the rows it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from fused_mlp.models import formula
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.arithmetic import Arithmetic
from fused_mlp.models.importers.building.nodes import (
    Constant,
    Indices,
    LinearNode,
    Node,
    NormNode,
    SoftmaxNode,
)
from fused_mlp.models.importers.building.rows import Rows, permuted, whole
from fused_mlp.models.importers.building.selection import MAX_MATRIX
from fused_mlp.models.spec import Combination


class Features(Arithmetic):
    def softmax(self, x: Rows, axis: int, *, log: bool = False) -> Rows:
        def make(node: Node) -> Node:
            made = SoftmaxNode(self._place, (node,), node.width, log)
            return self._once(("softmax", node.number, log), (), made)

        return self._over(x, (axis,), make)

    def norm(
        self,
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
            made = NormNode(self._place, (node,), node.width, kind, eps, flat_weight, flat_bias)
            return self._once(("norm", node.number, kind, eps), (flat_weight, flat_bias), made)

        return self._over(x, axes, make)

    def batch_norm(
        self,
        x: Rows,
        mean: Constant,
        variance: Constant,
        *,
        weight: Constant | None,
        bias: Constant | None,
        eps: float,
    ) -> Rows:
        """Of axis 1, with the statistics of training."""
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
        scaled = self._with_vector("multiply", x, Constant(scale.reshape(shape), fixed=fixed))
        return self._with_vector("add", scaled, Constant(shift.reshape(shape), fixed=fixed))

    def reduce(
        self,
        kind: Literal["sum", "mean", "max", "min", "prod"],
        x: Rows,
        axes: Sequence[int],
        *,
        keep: bool = False,
    ) -> Rows:
        """Over features; over the rows it is refused."""
        at = self._axes(x, axes)
        kept = tuple(1 if axis in at else size for axis, size in enumerate(x.shape))
        moved = np.moveaxis(x.index, at, range(-len(at), 0))
        index = moved.reshape(-1, math.prod(x.shape[axis] for axis in at))
        if kind in ("sum", "mean"):
            node = self._summed(x.node, index, kind)
            made = whole(node, kept, x.rows_at)
        else:
            if kind == "prod":
                found = self._product(x.node, index)
            else:
                found = self._extreme("maximum" if kind == "max" else "minimum", x.node, index)
            made = Rows(found.node, found.index.reshape(kept), x.rows_at)
        if keep:
            return made
        shape = [size for axis, size in enumerate(made.shape) if axis not in at]
        return Rows(made.node, made.index.reshape(shape), x.rows_at - sum(axis < x.rows_at for axis in at))

    def variance(self, x: Rows, axes: Sequence[int], correction: float, *, keep: bool = False) -> Rows:
        count = math.prod(x.shape[axis] for axis in self._axes(x, axes))
        if count <= correction:
            raise ModelLoadError(
                f"the variance of {count} values with correction {correction} is not defined"
            )
        centred = self.arithmetic("subtract", x, self.reduce("mean", x, axes, keep=True))
        squares = self.apply(centred, formula.call("square", formula.x()))
        total = self.reduce("sum" if correction else "mean", squares, axes, keep=keep)
        return self.arithmetic("multiply", total, 1 / (count - correction)) if correction else total

    def log_sum_exp(self, x: Rows, axes: Sequence[int], *, keep: bool = False) -> Rows:
        """With the largest feature taken out, so that nothing overflows: m + log(sum(exp(x - m)))."""
        largest = self.reduce("max", x, axes, keep=True)
        below = self.function("exp", self.arithmetic("subtract", x, largest))
        total = self.function("log", self.reduce("sum", below, axes, keep=keep))
        return self.arithmetic("add", largest if keep else self.reduce("max", x, axes), total)

    def _extreme(self, op: Combination, node: Node, index: Indices) -> Rows:
        """index: (results, features). By halves, which overlap where their number is odd: slices, since what they are
        halves of has all results of one feature side by side."""
        made = whole(self._gather(node, index.T.reshape(-1)), index.T.shape)
        while (count := made.shape[0]) > 1:
            half = (count + 1) // 2
            left, right = (Rows(made.node, made.index[part]) for part in (slice(half), slice(-half, None)))
            made = self._combine(op, left, right)
        return made

    def _product(self, node: Node, index: Indices) -> Rows:
        made = Rows(node, index[:, :1])
        for position in self._parts(range(1, index.shape[1])):
            made = self._combine("multiply", made, Rows(node, index[:, position : position + 1]))
        return made

    def _summed(self, node: Node, index: Indices, kind: Literal["sum", "mean"]) -> Node:
        """index: (results, summands)."""
        key = ("sum", kind, node.number, index.shape, index.tobytes())
        if key not in self._nodes:
            self._nodes[key] = self._made_sum(node, index, kind)
        return self._nodes[key]

    def _made_sum(self, node: Node, index: Indices, kind: Literal["sum", "mean"]) -> Node:
        if index.size < node.width:
            node, index = self._gather(node, index.reshape(-1)), np.arange(index.size).reshape(index.shape)
        if index.shape[0] * node.width > MAX_MATRIX:
            raise ModelLoadError(f"{index.shape[0]} sums over {node.width} features: too large a matrix")
        matrix = np.zeros((index.shape[0], node.width))
        np.add.at(
            matrix, (np.arange(index.shape[0])[:, None], index), 1.0 if kind == "sum" else 1 / index.shape[1]
        )
        alone = index.shape[0] == 1 and bool((matrix == matrix[0, 0]).all())
        return LinearNode(
            self._place, (node,), index.shape[0], Constant(matrix, fixed=True), None, kind if alone else ""
        )

    def _over(self, x: Rows, axes: Sequence[int], make: Callable[[Node], Node]) -> Rows:
        """A step over some axes of features, part by part where there are others beside them."""
        at = self._axes(x, axes)
        front = [axis for axis in range(x.index.ndim) if axis not in at]
        moved = permuted(x, [*front, *at])
        parts = moved.index.reshape(-1, math.prod(x.shape[axis] for axis in at))
        nodes = [make(self._gather(x.node, part)) for part in self._parts(list(parts))]
        made = whole(self._side_by_side(nodes), moved.shape, moved.rows_at)
        back = np.argsort([*front, *at]).tolist()
        return permuted(made, back)


def _flattened(constant: Constant | None) -> Constant | None:
    if constant is None or constant.array.ndim == 1:
        return constant
    return replace(constant, array=constant.array.reshape(-1))
