# SPDX-License-Identifier: Apache-2.0
"""Whole numbers that a model takes: ids of tables, flags, times. All arithmetic on them happens at the door, in 64
bits, as the rules of an input's fields; this module keeps, for each value, which rules those are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import (
    ArgmaxNode,
    BucketizeNode,
    Cell,
    CombineNode,
    Constant,
    FieldNode,
    Node,
    NumberNode,
    kind_of,
)
from fused_mlp.models.importers.building.rows import Rows, whole
from fused_mlp.models.importers.building.selection import NodeGraph
from fused_mlp.models.program.inputs import Add, Clip, Divide, Modulo, Multiply, Replace, Rule
from fused_mlp.models.program.spec import Comparison

Integers = NDArray[np.int64]
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_MAX_BUCKETS = 1 << 16
_OPPOSITE: dict[Comparison, Comparison] = {
    "less": "greater_equal", "greater_equal": "less", "greater": "less_equal", "less_equal": "greater",
    "equal": "not_equal", "not_equal": "equal",
}  # fmt: skip
# The same comparison with its operands exchanged.
MIRRORED: dict[Comparison, Comparison] = {
    "less": "greater", "greater": "less", "less_equal": "greater_equal", "greater_equal": "less_equal",
    "equal": "equal", "not_equal": "not_equal",
}  # fmt: skip
_COMPUTED = (
    "whole numbers that the model computes itself, such as argmax, are looked up or answered, nothing else"
)


def is_ids(value: object) -> bool:
    return isinstance(value, Rows) and kind_of(value.node) == "id"


def cut_off(graph: NodeGraph, x: Rows) -> Rows:
    """x.long() of floats that the model takes."""
    if x.node is not graph.input.node:
        raise ModelLoadError("a cast of computed floats to whole numbers is no step of an MLP")
    cells = tuple(graph.float_cells[at] for at in x.order)
    return whole(graph.fields(cells, "id"), x.shape, x.rows_at)


def as_floats(graph: NodeGraph, x: Rows, *, single: bool = False) -> Rows:
    """The same numbers as floats. `single`: as of FieldNode."""
    if not is_ids(x):
        return x
    if isinstance(x.node, FieldNode):
        cells = tuple(x.node.cells[at] for at in x.order)
        return whole(graph.fields(cells, "float", single), x.shape, x.rows_at)
    node = graph.nodes.setdefault(("number", x.node.number), NumberNode(graph.place, (x.node,), x.node.width))
    return x.of(node)


def as_ids(graph: NodeGraph, x: Rows, size: int) -> Node:
    """Ids of a table of that size, in row-major order. Floats that are whole numbers become some by comparison."""
    if is_ids(x):
        node = graph.flat(x)
        _bound(graph, node, size)
        return node
    if size > _MAX_BUCKETS:
        raise ModelLoadError(f"computed ids of a table of {size} rows: expected at most {_MAX_BUCKETS}")
    if size == 1:
        raise ModelLoadError("a table of one row is a constant: leave the lookup out")
    boundaries = Constant(np.arange(size - 1) + 0.5, fixed=True)
    node = graph.flat(x)
    return BucketizeNode(graph.place, (node,), node.width, boundaries)


def _bound(graph: NodeGraph, node: Node, size: int) -> None:
    """Ids of a node are looked up in a table of that size: the door refuses others, and steps make no others."""
    if isinstance(node, FieldNode):
        for cell in node.cells:
            graph.sizes[cell] = min(size, graph.sizes.get(cell, size))
        return
    made = 0
    if isinstance(node, BucketizeNode):
        made = node.boundaries.array.size + 1
    elif isinstance(node, ArgmaxNode):
        made = node.sources[0].width
    else:
        for source in node.sources:
            _bound(graph, source, size)
    if made > size:
        raise ModelLoadError(f"it looks up {made} different ids in a table of {size} rows")


def added(graph: NodeGraph, x: Rows, numbers: Integers) -> Rows:
    """numbers: whatever broadcasts to the shape of x, the same for all rows."""
    return _ruled(graph, x, numbers, lambda each: Add(values=(each,)))


def multiplied(graph: NodeGraph, x: Rows, numbers: Integers) -> Rows:
    return _ruled(graph, x, numbers, lambda each: Multiply(factor=each))


def divided(graph: NodeGraph, x: Rows, numbers: Integers) -> Rows:
    return _ruled(graph, x, numbers, lambda each: Divide(divisor=each))


def remainder(graph: NodeGraph, x: Rows, numbers: Integers, *, truncated: bool) -> Rows:
    return _ruled(graph, x, numbers, lambda each: Modulo(divisor=each, truncated=truncated))


def clipped(graph: NodeGraph, x: Rows, least: Integers | None, most: Integers | None) -> Rows:
    if least is not None:
        x = _ruled(graph, x, least, lambda each: Clip(least=each, most=_MOST))
    return x if most is None else _ruled(graph, x, most, lambda each: Clip(least=_LEAST, most=each))


def compared(graph: NodeGraph, op: Comparison, x: Rows, numbers: Integers) -> Rows:
    """1.0 where it holds, else 0.0: from the door, so that no id becomes a float that cannot hold it."""
    cells = []
    shape, values = _fit(x, numbers)
    for cell, value in zip(_cells(x, shape), values, strict=True):
        cells.append(cell._replace(rules=(*cell.rules, *_comparison(op, int(value)))))
    node = graph.fields(tuple(cells), "float")
    made = whole(node, shape, x.rows_at + len(shape) - x.index.ndim)
    graph.comparisons[node.number] = (op, x, numbers)
    return made


def opposite(graph: NodeGraph, x: Rows) -> Rows | None:
    """The opposite of a comparison of whole numbers; None for everything else."""
    if (found := graph.comparisons.get(x.node.number)) is None or not x.is_whole:
        return None
    op, of, numbers = found
    return x.of(compared(graph, _OPPOSITE[op], of, numbers).node)


def as_whole(graph: NodeGraph, x: Rows) -> Rows:
    """The whole numbers again that `as_floats` was given."""
    assert isinstance(x.node, FieldNode)
    return x.of(graph.fields(x.node.cells, "id"))


def replaced_where(graph: NodeGraph, condition: Rows, holds: bool, by: Integers, x: Rows) -> Rows | None:
    """where(x == found, by, x), and where(x < bound, by, x), also for several conditions at once; None if it is
    none of these. `holds` False: by, where the condition does not hold."""
    conditions = _conditions(graph, condition.node, holds, x)
    if conditions is None or len(np.unique(by)) != 1:
        return None
    value = int(by.flat[0])
    for op, bound in conditions:
        found = np.array(bound + (op == "greater") - (op == "less"))
        if op in ("less", "less_equal"):
            x = clipped(graph, x, found, None)
        elif op in ("greater", "greater_equal"):
            x = clipped(graph, x, None, found)
        elif op != "equal":
            return None
        x = _ruled(graph, x, found, lambda each: Replace(found=each, by=value))
    return x


def _conditions(graph: NodeGraph, node: Node, holds: bool, x: Rows) -> list[tuple[Comparison, int]] | None:
    """Comparisons of x, at least one of which is true where `node` is (`holds`), or is not."""
    if isinstance(node, CombineNode) and node.op == ("maximum" if holds else "multiply"):
        left, right = (_conditions(graph, source, holds, x) for source in node.sources)
        return None if left is None or right is None else left + right
    op, compared, number = graph.comparisons.get(node.number, (None, x, np.array(())))
    if op is None or compared.node is not x.node or not np.array_equal(compared.index, x.index):
        return None
    return [(op if holds else _OPPOSITE[op], int(number.flat[0]))] if number.size == 1 else None


def _ruled(graph: NodeGraph, x: Rows, numbers: Integers, make: Callable[[int], Rule]) -> Rows:
    shape, values = _fit(x, numbers)
    cells = []
    for cell, value in zip(_cells(x, shape), values, strict=True):
        try:
            rule: Rule = make(int(value))
        except ValueError:
            raise ModelLoadError(f"expected a positive number to divide ids by, got {value}") from None
        cells.append(ruled(cell, rule))
    node = graph.fields(tuple(cells), "id")
    return whole(node, shape, x.rows_at + len(shape) - x.index.ndim)


def _fit(x: Rows, numbers: Integers) -> tuple[tuple[int, ...], Integers]:
    """The shape of both, and a number for each of its places, in row-major order."""
    shape = np.broadcast_shapes(x.shape, numbers.shape)
    if shape[x.rows_at + len(shape) - x.index.ndim] != x.shape[x.rows_at]:
        raise ModelLoadError(f"a constant of shape {numbers.shape} has a value of its own for each row")
    return tuple(shape), np.broadcast_to(numbers, shape).reshape(-1)


def _cells(x: Rows, shape: tuple[int, ...]) -> list[Cell]:
    if not isinstance(x.node, FieldNode):
        raise ModelLoadError(_COMPUTED)
    return [x.node.cells[at] for at in np.broadcast_to(x.index, shape).reshape(-1)]


def ruled(cell: Cell, rule: Rule) -> Cell:
    """The cell after one more rule."""
    rules = cell.rules
    if rules and isinstance(rule, Add) and isinstance(rules[-1], Add):
        rule, rules = Add(values=(rule.values[0] + rules[-1].values[0],)), rules[:-1]
    return cell._replace(rules=(*rules, rule))


def left_out(ids: FieldNode, mask: Node) -> int | None:
    """The number p of a mask ids != p; None if it is none."""
    if not isinstance(mask, FieldNode) or not mask.cells[0].rules or mask.kind != "float":
        return None
    clip = mask.cells[0].rules[len(ids.cells[0].rules) : len(ids.cells[0].rules) + 1]
    if not clip or not isinstance(clip[0], Clip):
        return None
    number = (clip[0].least + clip[0].most) // 2
    compared = tuple(_comparison("not_equal", number))
    same = mask.cells == tuple(cell._replace(rules=(*cell.rules, *compared)) for cell in ids.cells)
    return number if same and number >= 0 else None


def _comparison(op: Comparison, value: int) -> list[Rule]:
    """Rules that make 1 of what the comparison with a number holds for, and 0 of the rest. Clipped before anything is
    subtracted: nothing wraps around."""
    if op in ("equal", "not_equal"):  # -1, 0 or 1, and their squares
        near = Clip(least=max(value - 1, _LEAST), most=min(value + 1, _MOST))
        rules: list[Rule] = [near, Add(values=(-value,)), Modulo(divisor=2)]
        opposite = op == "equal"
    else:
        first = value + (op in ("greater", "less_equal"))  # 1 from here on
        rules = [Clip(least=max(first - 1, _LEAST), most=min(first, _MOST)), Add(values=(1 - first,))]
        opposite = op in ("less", "less_equal")
    return [*rules, Add(values=(1,)), Modulo(divisor=2)] if opposite else rules
