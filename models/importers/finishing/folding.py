# SPDX-License-Identifier: Apache-2.0
"""Makes a reader's graph a program that runs fast: scales and shifts go into the products beside them, gates are
recognised, functions get their names, and what is computed twice is shared."""

from __future__ import annotations

from fused_mlp.models.errors import ModelLoadError
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
from fused_mlp.models.importers.finishing.buckets import put_into_buckets
from fused_mlp.models.importers.finishing.codes import (
    count_masked,
    mask_out,
    sum_up,
    take_in_codes,
    trim_codes,
)
from fused_mlp.models.importers.finishing.gates import recognise_gate
from fused_mlp.models.importers.finishing.graph import ChangingGraph
from fused_mlp.models.importers.finishing.scales import (
    even_out,
    fold_after,
    fold_before,
    replaced,
    shift_whole,
)
from fused_mlp.models.program import formula

# Formulas are exact; what is farther than this from a known function is another one.
_NAME_TOLERANCE = 1e-6


def fold(graph: ChangingGraph) -> None:
    """One pass after another over the nodes. A pass says whether it changed the graph."""
    _spell_out(graph)
    for change in _PASSES:
        for node in list(graph.nodes):
            if graph.live.get(node.number) is node and change(graph, node):
                graph.refresh()


def _spell_out(graph: ChangingGraph) -> None:
    """Functions that no formula spells are comparisons and choices."""
    while unknown := [each for each in graph.nodes if isinstance(each, ElementNode) and each.tree is None]:
        for node in unknown:
            if node.explicit is None:
                raise ModelLoadError(
                    f"{node.place}: its conditions make no function that is known by name; write it with "
                    "relu, clamp, maximum or minimum"
                )
            graph.redirect(node, node.explicit)
        graph.refresh()


def _share(graph: ChangingGraph, node: Node) -> bool:
    """A function of a value that another function of it is part of anyway: 1 - sigmoid(x) beside sigmoid(x)."""
    if not isinstance(node, ElementNode) or node.tree is None:
        return False
    siblings = [
        each
        for each in graph.users[node.sources[0].number]
        if isinstance(each, ElementNode) and each.tree is not None and each is not node
    ]
    for each in sorted(siblings, key=lambda sibling: -sibling.tree.size if sibling.tree else 0):
        if each.tree is not None and each.tree.size > 1 and each.number < node.number:
            rest = replaced(node.tree, each.tree, formula.x())
            if rest is not None and rest.op != "x":
                node.sources, node.tree, node.values = (each,), rest, formula.of(rest)
                return True
    return False


def _name(graph: ChangingGraph, node: Node) -> bool:
    if isinstance(node, ElementNode) and node.tree is not None and affine_of(node.tree) is None:
        made = formula.of(node.tree)
        if len(made.instructions) > 1:
            found = match_formula(made(POINTS), _NAME_TOLERANCE)
            if found is not None and found.op != "x":
                node.tree, node.values = found, formula.of(found)
    return False  # the graph is as it was


def _pick(graph: ChangingGraph, node: Node) -> bool:
    """Rows of a weight in another order, instead of the features of its product, or of a function of it."""
    found = order_of(node)
    if found is None or (graph.trainable and isinstance(node, ConcatNode)):
        return False
    source, _ = found
    function = source if isinstance(source, ElementNode) else None
    product = source if function is None else source.sources[0]
    if not isinstance(product, LinearNode) or any(each in (source, product) for each in graph.outputs):
        return False
    readers = {each.number: each for each in (_reader(graph, user) for user in graph.users[source.number])}
    orders = [order_of(each) for each in readers.values()]
    picked = [each[1] for each in orders if each is not None and each[0] is source]
    if len(picked) < len(readers) or sum(each.size for each in picked) > 2 * source.width:
        return False
    if function is not None and (len(readers) > 1 or not graph.is_only_use(product)):
        return False
    for reader, order in zip(readers.values(), picked, strict=True):
        graph.replace(reader, _picked(reader, product, function, order))
    return True


def _reader(graph: ChangingGraph, user: Node) -> Node:
    """The only reader of a slice; else the slice itself."""
    return graph.users[user.number][0] if isinstance(user, SliceNode) and graph.is_only_use(user) else user


def _picked(reader: Node, product: LinearNode, function: ElementNode | None, order: Indices) -> Node:
    bias = None if product.bias is None else product.bias.of(product.bias.exact[order])
    weight = product.weight.of(product.weight.exact[order])
    made = LinearNode(product.place, product.sources, order.size, weight, bias)
    if function is None:
        return made
    made.number = reader.sources[0].number  # between what it reads and what reads it
    return ElementNode(function.place, (made,), order.size, function.tree, function.values)


def _merge(graph: ChangingGraph, node: Node) -> bool:
    """A function of a function that nothing else needs is one."""
    source = node.sources[0] if node.sources else None
    if (
        not isinstance(node, ElementNode)
        or not isinstance(source, ElementNode)
        or not graph.is_only_use(source)
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


def _flatten(graph: ChangingGraph, node: Node) -> bool:
    """A concat of concats is one."""
    if isinstance(node, ConcatNode):
        parts: list[Node] = []
        for source in node.sources:
            inside = isinstance(source, ConcatNode) and graph.is_only_use(source)
            parts.extend(source.sources if inside else (source,))
        node.sources = tuple(parts)
    return isinstance(node, ConcatNode)


_PASSES = (
    shift_whole, trim_codes, mask_out, count_masked, put_into_buckets, sum_up, _share, _name, _pick, fold_after,
    _flatten, fold_before, take_in_codes, even_out, _merge, recognise_gate, _flatten,
)  # fmt: skip
