# SPDX-License-Identifier: Apache-2.0
"""Scales and shifts: they become part of the products and norms beside them, or functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fused_mlp.models.importers.building.nodes import (
    AffineNode,
    ConcatNode,
    Constant,
    ElementNode,
    FieldNode,
    LinearNode,
    Node,
    NormNode,
    Weights,
    affine_of,
    number,
)
from fused_mlp.models.importers.building.whole_numbers import ruled
from fused_mlp.models.importers.finishing.graph import ChangingGraph
from fused_mlp.models.program import formula
from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.inputs import Add

# Range of a shift of whole numbers that needs 64 bits: float32 holds sums with smaller shifts well enough, and float64
# cannot hold larger ones.
_SMALLEST_SHIFT, _LARGEST_SHIFT = 1 << 12, 1 << 53


def fold_after(graph: ChangingGraph, node: Node) -> bool:
    """Scale and shift of a product become part of it; those of a norm its weight and bias."""
    affine = _affine(node)
    if affine == (None, None):
        graph.bypass(node)
        return True
    if affine is None or not graph.is_only_use(node.sources[0]):
        return False
    scale, shift = affine
    source = node.sources[0]
    if isinstance(source, LinearNode):
        source.weight, source.bias = _scaled(source.weight, source.bias, scale, shift)
    elif isinstance(source, ConcatNode):
        if not _spread(graph, source, scale, shift):
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
    graph.bypass(node)
    return True


def fold_before(graph: ChangingGraph, node: Node) -> bool:
    """Scale and shift that only products read become part of those: W (s x + t) + b = (W s) x + (W t + b). Also
    where other values lie beside it."""
    affine = _affine(node)
    products = None if affine is None else _products_of(graph, node)
    if affine is None or not products:
        return False
    scale, shift = affine
    for user, start in products:
        columns = slice(start, start + node.width)
        if shift is not None:
            moved = replace(user.weight.of(user.weight.exact[:, columns] @ shift.exact, shift), dtype="")
            user.bias = _sum(user.bias, moved)
        if scale is not None:
            weight = user.weight.exact.copy()
            weight[:, columns] *= scale.exact
            user.weight = user.weight.of(weight, scale)
        user.role = ""
    graph.bypass(node)
    return True


def _products_of(graph: ChangingGraph, node: Node) -> list[tuple[LinearNode, int]] | None:
    """The products that read a value, and where they have it; None if something else reads it too."""
    if any(output is node for output in graph.outputs):
        return None
    found: list[tuple[LinearNode, int]] = []
    for user in graph.users[node.number]:
        if isinstance(user, LinearNode) and user.role in ("", "sum", "mean"):
            found.append((user, 0))
            continue
        inner = _products_of(graph, user) if isinstance(user, ConcatNode) else None
        if not isinstance(user, ConcatNode) or inner is None or user.sources.count(node) != 1:
            return None
        start = sum(part.width for part in user.sources[: user.sources.index(node)])
        found += [(product, at + start) for product, at in inner]
    return found


def shift_whole(graph: ChangingGraph, node: Node) -> bool:
    """A large number that is added to whole numbers is added to them in 64 bits, before float32 rounds them:
    (time.double() - 1.7e9) / 86400."""
    field = node.sources[0] if node.sources else None
    if not isinstance(field, FieldNode) or field.kind != "float" or field.single:
        return False
    part = _affine_part(node.tree) if isinstance(node, ElementNode) and node.tree is not None else None
    if isinstance(node, AffineNode) and node.shift is not None:
        scale = np.ones(node.width) if node.scale is None else node.scale.exact
        shift = node.shift.exact
    elif part is not None:
        scale, shift = (np.full(node.width, each) for each in affine_of(part) or ())
    else:
        return False
    added = np.rint(np.divide(shift, scale, out=np.zeros_like(shift), where=scale != 0))
    size = np.abs(added).max()
    if not _SMALLEST_SHIFT <= size <= _LARGEST_SHIFT:
        return False
    left = shift - added * scale
    left[np.abs(left) <= 1e-12 * np.abs(shift)] = 0
    if isinstance(node, AffineNode):
        node.shift = node.shift.of(left) if node.shift is not None and left.any() else None
    elif isinstance(node, ElementNode) and node.tree is not None and part is not None:
        moved = formula.x()
        for op, each, neutral in (("multiply", scale[0], 1.0), ("add", left[0], 0.0)):
            if each != neutral:
                moved = formula.binary(op, moved, formula.constant(float(each)))
        tree = replaced(node.tree, part, moved)
        if tree is None:
            return False
        node.tree, node.values = tree, formula.of(tree)
    cells = [ruled(cell, Add(values=(int(each),))) for cell, each in zip(field.cells, added, strict=True)]
    node.sources = (FieldNode(field.place, (), field.width, tuple(cells), "float"),)
    return True


def even_out(graph: ChangingGraph, node: Node) -> bool:
    """One scale and shift for all features is a function."""
    if isinstance(node, AffineNode) and (tree := _uniform(node)) is not None:
        graph.replace(node, ElementNode(node.place, node.sources, node.width, tree, formula.of(tree)))
        return True
    return False


def _affine(node: Node) -> tuple[Constant | None, Constant | None] | None:
    """Scale and shift of a node that is no more than that."""
    if isinstance(node, AffineNode):
        return _unless(node.scale, 1.0), _unless(node.shift, 0.0)
    if isinstance(node, ElementNode) and (found := affine_of(node.tree)) is not None:
        scale, shift = (number(each, node.width) for each in found)
        return _unless(scale, 1.0), _unless(shift, 0.0)
    return None


def _spread(graph: ChangingGraph, concat: ConcatNode, scale: Constant | None, shift: Constant | None) -> bool:
    """Scale and shift of products side by side, each into its own."""
    parts = [part for part in concat.sources if isinstance(part, LinearNode) and graph.is_only_use(part)]
    if len(parts) != len(concat.sources):
        return False
    start = 0
    for part in parts:
        cut = slice(start, start + part.width)
        factor, offset = (None if each is None else each.of(each.array[cut]) for each in (scale, shift))
        part.weight, part.bias = _scaled(part.weight, part.bias, factor, offset)
        part.role, start = "", cut.stop
    return True


def _affine_part(tree: formula.Node) -> formula.Node | None:
    """The largest part of a function that is x, scaled and shifted."""
    if (found := affine_of(tree)) is not None:
        return tree if found[0] else None
    return next((part for each in tree.arguments if (part := _affine_part(each)) is not None), None)


def replaced(tree: formula.Node, part: formula.Node, by: formula.Node) -> formula.Node | None:
    """The tree with `by` for the part; None if x occurs elsewhere too."""
    if tree == part:
        return by
    if tree.op == "x":
        return None
    inner = [replaced(each, part, by) for each in tree.arguments]
    if any(each is None for each in inner):
        return None
    return formula.Node(tree.op, tuple(each for each in inner if each is not None), tree.numbers)


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
