# SPDX-License-Identifier: Apache-2.0
"""Gates: a function of one product times another product of the same input is one step."""

from __future__ import annotations

import numpy as np

from fused_mlp.models.importers.building.nodes import (
    CombineNode,
    Constant,
    ElementNode,
    GatedNode,
    LinearNode,
    Node,
    SliceNode,
    Weights,
)
from fused_mlp.models.importers.finishing.graph import ChangingGraph
from fused_mlp.models.program import formula


def recognise_gate(graph: ChangingGraph, node: Node) -> bool:
    """function(gate) * up, of two products with the same input, or of two halves of one."""
    if not isinstance(node, CombineNode) or node.op != "multiply" or node.sources[0] is node.sources[1]:
        return False
    left, right = (_half(graph, source) for source in node.sources)
    if left is None or right is None or left[0] is not right[0]:
        return False
    if left[2].op != "x" and right[2].op != "x":
        return False
    gate, up = (right, left) if left[2].op == "x" else (left, right)
    if left[2].op == right[2].op == "x":
        gate, up = left, right
    made = GatedNode(
        node.place,
        (gate[0],),
        node.width,
        up=_with_bias(up[1], gate[1]),
        gate=_with_bias(gate[1], up[1]),
        function=gate[2],
    )
    graph.replace(node, made)
    return True


def _half(graph: ChangingGraph, node: Node) -> tuple[Node, Weights, formula.Node] | None:  # noqa: PLR0911 - one for each thing that is none
    """(input, product, function) of one operand, if nothing else needs what is in between."""
    tree = formula.x()
    if not graph.is_only_use(node):
        return None
    if isinstance(node, ElementNode):
        if node.tree is None:
            return None
        tree, node = node.tree, node.sources[0]
        if not graph.is_only_use(node):
            return None
    rows = slice(0, node.width)
    if isinstance(node, SliceNode):
        rows = slice(node.start, node.start + node.width)
        node = node.sources[0]
        users = graph.users[node.number]
        if any(output is node for output in graph.outputs) or len(users) != 2:
            return None
        if not all(isinstance(user, SliceNode) for user in users):
            return None
    if not isinstance(node, LinearNode) or node.role:
        return None
    if rows == slice(0, node.width):
        return node.sources[0], (node.weight, node.bias), tree
    bias = None if node.bias is None else node.bias.of(node.bias.array[rows])
    return node.sources[0], (node.weight.of(node.weight.array[rows]), bias), tree


def _with_bias(half: Weights, other: Weights) -> Weights:
    """The spec has one flag for both halves: a missing bias beside a present one is zero."""
    weight, bias = half
    if bias is None and other[1] is not None:
        bias = Constant(np.zeros(weight.shape[0]), fixed=True)
    return weight, bias
