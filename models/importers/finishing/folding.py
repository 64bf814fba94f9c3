# SPDX-License-Identifier: Apache-2.0
"""What makes a reader's graph a program that runs fast: scales and shifts go into the products beside them, gates are
recognised, functions get their names, and what is computed twice is shared."""

from __future__ import annotations

from fused_mlp.models import formula
from fused_mlp.models.importers.building.activation_match import POINTS, match_formula
from fused_mlp.models.importers.building.nodes import (
    ConcatNode,
    ElementNode,
    Indices,
    LinearNode,
    Node,
    SliceNode,
    affine_of,
    order_of,
)
from fused_mlp.models.importers.finishing.gates import Gates
from fused_mlp.models.importers.finishing.scales import Scales

# Formulas are exact; what is farther than this from a known function is another one.
_NAME_TOLERANCE = 1e-6


class Folding(Scales, Gates):
    """One pass after another over the nodes. A pass says whether it changed the graph. `trainable`: weights that are to
    stay as they are in the source do, where that costs no product."""

    def __init__(self, outputs: list[Node], trainable: bool) -> None:
        super().__init__(outputs)
        self._trainable = trainable

    def run(self) -> list[Node]:
        """The nodes that are left, sources first."""
        for step in (
            self._share,
            self._name,
            self._pick,
            self._fold_after,
            self._fold_before,
            self._even_out,
            self._merge,
            self._gate,
            self._flatten,
        ):
            for node in list(self.nodes):
                if self._live.get(node.number) is node and step(node):
                    self._refresh()
        return self.nodes

    def _share(self, node: Node) -> bool:
        """A function of a value that another function of it is part of anyway: 1 - sigmoid(x) beside sigmoid(x)."""
        if not isinstance(node, ElementNode) or node.tree is None:
            return False
        siblings = [
            each
            for each in self._users[node.sources[0].number]
            if isinstance(each, ElementNode) and each.tree is not None and each is not node
        ]
        for each in sorted(siblings, key=lambda sibling: -sibling.tree.size if sibling.tree else 0):
            if each.tree is not None and each.tree.size > 1 and each.number < node.number:
                rest = _without(node.tree, each.tree)
                if rest is not None and rest.op != "x":
                    node.sources, node.tree, node.values = (each,), rest, formula.of(rest)
                    return True
        return False

    def _name(self, node: Node) -> bool:
        if isinstance(node, ElementNode) and node.tree is not None and affine_of(node.tree) is None:
            made = formula.of(node.tree)
            if len(made.instructions) > 1:
                found = match_formula(made(POINTS), _NAME_TOLERANCE)
                if found is not None and found.op != "x":
                    node.tree, node.values = found, formula.of(found)
        return False  # the graph is as it was

    def _pick(self, node: Node) -> bool:
        """Rows of a weight in another order, instead of the features of its product, or of a function of it."""
        found = order_of(node)
        if found is None or (self._trainable and isinstance(node, ConcatNode)):
            return False
        source, _ = found
        function = source if isinstance(source, ElementNode) else None
        product = source if function is None else source.sources[0]
        if not isinstance(product, LinearNode) or any(each in (source, product) for each in self.outputs):
            return False
        readers = {each.number: each for each in map(self._reader, self._users[source.number])}
        orders = [order_of(each) for each in readers.values()]
        picked = [each[1] for each in orders if each is not None and each[0] is source]
        if len(picked) < len(readers) or sum(each.size for each in picked) > 2 * source.width:
            return False
        if function is not None and (len(readers) > 1 or not self._only_use(product)):
            return False
        for reader, order in zip(readers.values(), picked, strict=True):
            self._replace(reader, self._picked(reader, product, function, order))
        return True

    def _reader(self, user: Node) -> Node:
        """What reads a slice, if that is all that does."""
        return self._users[user.number][0] if isinstance(user, SliceNode) and self._only_use(user) else user

    def _picked(
        self, reader: Node, product: LinearNode, function: ElementNode | None, order: Indices
    ) -> Node:
        bias = None if product.bias is None else product.bias.of(product.bias.exact[order])
        weight = product.weight.of(product.weight.exact[order])
        made = LinearNode(product.place, product.sources, order.size, weight, bias)
        if function is None:
            return made
        made.number = reader.sources[0].number  # between what it reads and what reads it
        return ElementNode(function.place, (made,), order.size, function.tree, function.values)

    def _merge(self, node: Node) -> bool:
        """A function of a function that nothing else needs is one."""
        source = node.sources[0] if node.sources else None
        if (
            not isinstance(node, ElementNode)
            or not isinstance(source, ElementNode)
            or not self._only_use(source)
        ):
            return False
        if node.tree is None or source.tree is None:
            return False
        try:
            merged = formula.of(source.tree).then(formula.of(node.tree))
        except formula.FormulaError:  # too long for one
            return False
        node.sources, node.tree, node.values = source.sources, merged.root, merged
        return True

    def _flatten(self, node: Node) -> bool:
        """A concat of concats is one."""
        if isinstance(node, ConcatNode):
            parts: list[Node] = []
            for source in node.sources:
                inside = isinstance(source, ConcatNode) and self._only_use(source)
                parts.extend(source.sources if inside else (source,))
            node.sources = tuple(parts)
        return isinstance(node, ConcatNode)


def _without(tree: formula.Node, part: formula.Node) -> formula.Node | None:
    """The tree with x for the part; None if x occurs elsewhere too."""
    if tree == part:
        return formula.x()
    if tree.op == "x":
        return None
    inner = [_without(each, part) for each in tree.arguments]
    if any(each is None for each in inner):
        return None
    return formula.Node(tree.op, tuple(each for each in inner if each is not None), tree.numbers)
