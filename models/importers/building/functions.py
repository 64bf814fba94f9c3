# SPDX-License-Identifier: Apache-2.0
"""Functions of one value. One after another, or several of the same value combined, are one function again: written as
a formula where there is one, otherwise known by its values until it turns out to be part of a known function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.activation_match import POINTS, match_formula
from fused_mlp.models.importers.building.nodes import ElementNode, Node
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.building.selection import NodeGraph
from fused_mlp.models.program import formula
from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.formula import FormulaError

Function = tuple[formula.Node | None, Callable[[Floats], Floats]]


def function(graph: NodeGraph, name: str, x: Rows, *numbers: float) -> Rows:
    """A function of models/program/formula.py."""
    tree = formula.call(name, formula.x(), *numbers)
    return apply(graph, x, tree)


def apply(graph: NodeGraph, x: Rows, tree: formula.Node) -> Rows:
    """A formula."""
    x = graph.compact(x)
    return x.of(element(graph, x.node, tree, formula.of(tree)))


def power(graph: NodeGraph, x: Rows, exponent: float) -> Rows:
    """x ** exponent, for whole and half exponents up to 16."""
    size = abs(exponent)
    if not 0 < size <= 16 or size * 2 != int(size * 2):
        raise ModelLoadError(
            f"the power {exponent} is no step of an MLP: expected a whole or half one, up to 16"
        )
    whole_part, root = int(size), size != int(size)
    tree = formula.constant(1.0)
    base, bits = formula.x(), whole_part
    while bits:
        if bits & 1:
            tree = base if tree.op == "constant" else formula.binary("multiply", tree, base)
        base, bits = formula.binary("multiply", base, base), bits >> 1
    if root:
        tree = (
            formula.call("sqrt", formula.x())
            if whole_part == 0
            else formula.binary("multiply", tree, formula.call("sqrt", formula.x()))
        )
    if exponent < 0:
        tree = formula.binary("divide", formula.constant(1.0), tree)
    return apply(graph, x, tree)


def element(
    graph: NodeGraph, node: Node, tree: formula.Node | None, values: Callable[[Floats], Floats]
) -> Node:
    """A function of a node, merged with what the node already is a function of."""
    if tree is not None and tree.op == "x":
        return node
    base, inner, inner_values = _unwrapped(node)
    if base is not node:
        try:
            merged = None if tree is None or inner is None else formula.of(inner).then(formula.of(tree)).root
            made = made_element(graph, base, merged, lambda x: values(inner_values(x)))
            if isinstance(made, ElementNode) and made.tree is None and tree is not None:
                made.explicit = ElementNode(graph.place, (node,), node.width, tree, values)
            return made
        except FormulaError:  # too long for one formula
            pass
    return made_element(graph, node, tree, values)


def made_element(
    graph: NodeGraph, base: Node, tree: formula.Node | None, values: Callable[[Floats], Floats]
) -> Node:
    if tree is None:
        with np.errstate(all="ignore"):
            tree = match_formula(values(POINTS))
        if tree is None:
            return ElementNode(graph.place, (base,), base.width, None, values)
        values = formula.of(tree)
    if tree.op == "x":
        return base
    formula.of(tree)  # FormulaError where it is too long
    key = ("element", base.number, tree)
    return graph.nodes.setdefault(key, ElementNode(graph.place, (base,), base.width, tree, values))


def one_value(*operands: Rows) -> tuple[Rows, list[Function]] | None:
    """The one value that all operands are functions of, and these functions; None if there are two."""
    parts = [_unwrapped(each.node) for each in operands]
    base, first = parts[0][0], operands[0]
    if any(part[0] is not base for part in parts):
        return None
    if any(not np.array_equal(each.index, first.index) for each in operands[1:]):
        return None
    return first.of(base), [(tree, values) for _, tree, values in parts]


def _unwrapped(node: Node) -> tuple[Node, formula.Node | None, Callable[[Floats], Floats]]:
    """The node that a node is a function of, and the function."""
    if isinstance(node, ElementNode):
        return node.sources[0], node.tree, node.values
    return node, formula.x(), _itself


def _itself(x: Floats) -> Floats:
    return x
