"""What makes a reader's graph a program that runs fast: scales and shifts go into the products beside them, gates are
recognised, functions get their names, and what is computed twice is shared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fused_mlp.models import formula
from fused_mlp.models.activations import Floats
from fused_mlp.models.importers.activation_match import POINTS, match_formula
from fused_mlp.models.importers.building.nodes import (
    AffineNode,
    CombineNode,
    ConcatNode,
    Constant,
    ElementNode,
    GatedNode,
    LinearNode,
    Node,
    NormNode,
    SliceNode,
    affine_of,
    live_nodes,
)

# Formulas are exact; what is farther than this from a known function is another one.
_NAME_TOLERANCE = 1e-6
Linear = tuple[Constant, Constant | None]


class Folding:
    """A graph while it is folded. `outputs`: the nodes that leave it, which change with it."""

    def __init__(self, outputs: list[Node]) -> None:
        self.outputs = outputs
        self._refresh()

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
                if node.number in self._numbers and step(node):
                    self._refresh()
        return self.nodes

    def _refresh(self) -> None:
        self.nodes = live_nodes(self.outputs)
        self._numbers = {node.number for node in self.nodes}
        self._users: dict[int, list[Node]] = {node.number: [] for node in self.nodes}
        for node in self.nodes:
            for source in node.sources:
                self._users[source.number].append(node)

    def _replace(self, old: Node, new: Node) -> None:
        new.number = old.number  # its place in the order
        for user in self._users[old.number]:
            user.sources = tuple(new if source is old else source for source in user.sources)
        self.outputs = [new if output is old else output for output in self.outputs]

    def _bypass(self, node: Node) -> None:
        """Its users read its source instead."""
        (source,) = node.sources
        for user in self._users[node.number]:
            user.sources = tuple(source if each is node else each for each in user.sources)
        self.outputs = [source if output is node else output for output in self.outputs]

    def _only_use(self, node: Node) -> bool:
        return len(self._users[node.number]) == 1 and all(output is not node for output in self.outputs)

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
        """Rows of a weight in another order, instead of the features of its product."""
        if not isinstance(node, LinearNode) or node.role != "select":
            return False
        source = node.sources[0]
        if not isinstance(source, LinearNode) or any(output is source for output in self.outputs):
            return False
        users = self._users[source.number]
        if not all(isinstance(user, LinearNode) and user.role == "select" for user in users):
            return False
        if sum(user.width for user in users) > 2 * source.width:
            return False
        for user in users:
            assert isinstance(user, LinearNode)
            order = user.weight.array.argmax(axis=1)
            bias = None if source.bias is None else Constant(source.bias.exact[order], "", source.bias.dtype)
            user.weight, user.bias, user.role = (
                Constant(source.weight.exact[order], "", source.weight.dtype),
                bias,
                "",
            )
            user.sources, user.place = source.sources, source.place
        return True

    def _affine(self, node: Node) -> tuple[Constant | None, Constant | None] | None:
        """Scale and shift of a node that is no more than that."""
        if isinstance(node, AffineNode):
            return _unless(node.scale, 1.0), _unless(node.shift, 0.0)
        if isinstance(node, ElementNode) and (found := affine_of(node.tree)) is not None:
            scale, shift = (Constant(np.full(node.width, number)) for number in found)
            return _unless(scale, 1.0), _unless(shift, 0.0)
        return None

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

    def _spread(self, concat: ConcatNode, scale: Constant | None, shift: Constant | None) -> bool:
        """Scale and shift of products side by side, each into its own."""
        parts = [part for part in concat.sources if isinstance(part, LinearNode) and self._only_use(part)]
        if len(parts) != len(concat.sources):
            return False
        start = 0
        for part in parts:
            cut = slice(start, start + part.width)
            own = (
                None if each is None else Constant(each.array[cut], "", each.dtype) for each in (scale, shift)
            )
            factor, offset = own
            part.weight, part.bias = _scaled(part.weight, part.bias, factor, offset)
            part.role, start = "", cut.stop
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
                moved = Constant(user.weight.exact @ shift.exact, fixed=user.weight.fixed)
                user.bias = (
                    moved
                    if user.bias is None
                    else Constant(user.bias.exact + moved.exact, "", user.bias.dtype)
                )
            if scale is not None:
                user.weight = Constant(
                    user.weight.exact * scale.exact, "", user.weight.dtype, user.weight.fixed
                )
            user.role = ""
        self._bypass(node)
        return True

    def _even_out(self, node: Node) -> bool:
        """One scale and shift for all features is a function."""
        if isinstance(node, AffineNode) and (tree := _uniform(node)) is not None:
            self._replace(node, ElementNode(node.place, node.sources, node.width, tree, formula.of(tree)))
            return True
        return False

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

    def _gate(self, node: Node) -> bool:
        """function(gate) * up, of two products with the same input, or of two halves of one."""
        if not isinstance(node, CombineNode) or node.op != "multiply" or node.sources[0] is node.sources[1]:
            return False
        left, right = (self._half(source) for source in node.sources)
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
        self._replace(node, made)
        return True

    def _half(self, node: Node) -> tuple[Node, Linear, formula.Node] | None:  # noqa: PLR0911 - one for each thing that is none
        """(input, product, function) of one operand, if nothing else needs what is in between."""
        tree = formula.x()
        if not self._only_use(node):
            return None
        if isinstance(node, ElementNode):
            if node.tree is None:
                return None
            tree, node = node.tree, node.sources[0]
            if not self._only_use(node):
                return None
        rows = slice(0, node.width)
        if isinstance(node, SliceNode):
            rows = slice(node.start, node.start + node.width)
            node = node.sources[0]
            users = self._users[node.number]
            if any(output is node for output in self.outputs) or len(users) != 2:
                return None
            if not all(isinstance(user, SliceNode) for user in users):
                return None
        if not isinstance(node, LinearNode) or node.role:
            return None
        if rows == slice(0, node.width):
            return node.sources[0], (node.weight, node.bias), tree
        bias = None if node.bias is None else Constant(node.bias.array[rows], "", node.bias.dtype)
        return node.sources[0], (Constant(node.weight.array[rows], "", node.weight.dtype), bias), tree

    def _flatten(self, node: Node) -> bool:
        """A concat of concats is one."""
        if isinstance(node, ConcatNode):
            parts: list[Node] = []
            for source in node.sources:
                inside = isinstance(source, ConcatNode) and self._only_use(source)
                parts.extend(source.sources if inside else (source,))
            node.sources = tuple(parts)
        return isinstance(node, ConcatNode)


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
    """None for one that changes nothing and that nobody has named."""
    if constant is None or (not constant.origin and bool((constant.exact == neutral).all())):
        return None
    return constant


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


def _scaled(
    weight: Constant, bias: Constant | None, scale: Constant | None, shift: Constant | None
) -> Linear:
    """A product and what follows it; what nothing is done to keeps its origin."""
    if scale is not None:
        weight = Constant(weight.exact * scale.exact[:, None], "", weight.dtype, weight.fixed)
        bias = _product(bias, scale) if bias is not None else None
    return weight, _sum(bias, shift)


def _product(first: Constant | None, second: Constant | None) -> Constant | None:
    return _both(first, second, np.multiply)


def _sum(first: Constant | None, second: Constant | None) -> Constant | None:
    return _both(first, second, np.add)


def _both(first: Constant | None, second: Constant | None, compute: Callable[..., Floats]) -> Constant | None:
    if first is None or second is None:
        return second if first is None else first
    return Constant(compute(first.exact, second.exact), "", first.dtype)


def _with_bias(half: Linear, other: Linear) -> Linear:
    """The spec has one flag for both halves: a missing bias beside a present one is zero."""
    weight, bias = half
    if bias is None and other[1] is not None:
        bias = Constant(np.zeros(weight.shape[0]), fixed=True)
    return weight, bias
