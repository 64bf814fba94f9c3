# SPDX-License-Identifier: Apache-2.0
"""Scales and shifts: they become part of the products and norms beside them, or functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fused_mlp.models import formula
from fused_mlp.models.activations import Floats
from fused_mlp.models.importers.building.nodes import (
    AffineNode,
    ConcatNode,
    Constant,
    ElementNode,
    LinearNode,
    Node,
    NormNode,
    Weights,
    affine_of,
    number,
)
from fused_mlp.models.importers.finishing.graph import ChangingGraph


class Scales(ChangingGraph):
    def _fold_after(self, node: Node) -> bool:
        """Scale and shift of a product become part of it; those of a norm its weight and bias."""
        affine = self._affine(node)
        if affine == (None, None):
            self._bypass(node)
            return True
        if affine is None or not self._only_use(node.sources[0]):
            return False
        scale, shift = affine
        source = node.sources[0]
        if isinstance(source, LinearNode):
            source.weight, source.bias = _scaled(source.weight, source.bias, scale, shift)
        elif isinstance(source, ConcatNode):
            if not self._spread(source, scale, shift):
                return False
        elif isinstance(source, AffineNode):
            source.shift = _sum(None if source.shift is None else _product(source.shift, scale), shift)
            source.scale = _product(source.scale, scale)
        elif isinstance(source, NormNode):
            source.weight, bias = _product(source.weight, scale), source.bias
            source.bias = _sum(None if bias is None else _product(bias, scale), shift)
        else:
            return False
        if isinstance(source, LinearNode):
            source.role = ""
        self._bypass(node)
        return True

    def _fold_before(self, node: Node) -> bool:
        """Scale and shift that only products read become part of those: W (s x + t) + b = (W s) x + (W t + b)."""
        affine = self._affine(node)
        users = self._users[node.number]
        if affine is None or not users or any(output is node for output in self.outputs):
            return False
        if not all(isinstance(user, LinearNode) and user.role in ("", "sum", "mean") for user in users):
            return False
        scale, shift = affine
        for user in users:
            assert isinstance(user, LinearNode)
            if shift is not None:
                moved = replace(user.weight.of(user.weight.exact @ shift.exact, shift), dtype="")
                user.bias = _sum(user.bias, moved)
            if scale is not None:
                user.weight = user.weight.of(user.weight.exact * scale.exact, scale)
            user.role = ""
        self._bypass(node)
        return True

    def _even_out(self, node: Node) -> bool:
        """One scale and shift for all features is a function."""
        if isinstance(node, AffineNode) and (tree := _uniform(node)) is not None:
            self._replace(node, ElementNode(node.place, node.sources, node.width, tree, formula.of(tree)))
            return True
        return False

    def _affine(self, node: Node) -> tuple[Constant | None, Constant | None] | None:
        """Scale and shift of a node that is no more than that."""
        if isinstance(node, AffineNode):
            return _unless(node.scale, 1.0), _unless(node.shift, 0.0)
        if isinstance(node, ElementNode) and (found := affine_of(node.tree)) is not None:
            scale, shift = (number(each, node.width) for each in found)
            return _unless(scale, 1.0), _unless(shift, 0.0)
        return None

    def _spread(self, concat: ConcatNode, scale: Constant | None, shift: Constant | None) -> bool:
        """Scale and shift of products side by side, each into its own."""
        parts = [part for part in concat.sources if isinstance(part, LinearNode) and self._only_use(part)]
        if len(parts) != len(concat.sources):
            return False
        start = 0
        for part in parts:
            cut = slice(start, start + part.width)
            factor, offset = (None if each is None else each.of(each.array[cut]) for each in (scale, shift))
            part.weight, part.bias = _scaled(part.weight, part.bias, factor, offset)
            part.role, start = "", cut.stop
        return True


def _uniform(node: AffineNode) -> formula.Node | None:
    """The formula of a scale and shift that are the same number for every feature."""
    tree = formula.x()
    for op, constant in (("multiply", _unless(node.scale, 1.0)), ("add", _unless(node.shift, 0.0))):
        if constant is not None:
            if constant.origin or not bool((constant.exact == constant.exact[0]).all()):
                return None
            tree = formula.binary(op, tree, formula.constant(float(constant.exact[0])))
    return tree


def _unless(constant: Constant | None, neutral: float) -> Constant | None:
    """None for a constant that changes nothing and has no name in the source."""
    if constant is None or (not constant.origin and bool((constant.exact == neutral).all())):
        return None
    return constant


def _scaled(
    weight: Constant, bias: Constant | None, scale: Constant | None, shift: Constant | None
) -> Weights:
    """A product and what follows it; what nothing is done to keeps its origin."""
    if scale is not None:
        weight = weight.of(weight.exact * scale.exact[:, None], scale)
        bias = _product(bias, scale) if bias is not None else None
    return weight, _sum(bias, shift)


def _product(first: Constant | None, second: Constant | None) -> Constant | None:
    return _both(first, second, np.multiply)


def _sum(first: Constant | None, second: Constant | None) -> Constant | None:
    return _both(first, second, np.add)


def _both(first: Constant | None, second: Constant | None, compute: Callable[..., Floats]) -> Constant | None:
    if first is None or second is None:
        return second if first is None else first
    return first.of(compute(first.exact, second.exact), second)
