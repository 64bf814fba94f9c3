# SPDX-License-Identifier: Apache-2.0
"""The record of a program with named inputs: which values of which input it reads, after which rules, and where their
words lie. Nodes that read inputs become slices of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import (
    BagNode,
    Cell,
    ConcatNode,
    FieldNode,
    InputNode,
    Node,
    Place,
    SliceNode,
    Source,
)
from fused_mlp.models.importers.finishing.graph import ChangingGraph
from fused_mlp.models.program.inputs import Add, Field, Input, Rule
from fused_mlp.models.program.spec import Kind

Word = tuple[Kind, Cell]
# Values of one field have these in common: kind, size, and their rules but for the numbers that are added.
_Alike = tuple[Kind, int | None, tuple[object, ...]]


@dataclass(frozen=True)
class Layout:
    """The inputs of a program. `floats`: the features of `start`. `sizes`: of ids, those of their tables.
    `named`: the model has inputs, not one of floats alone."""

    start: Node
    sources: tuple[Source, ...]
    floats: tuple[Cell, ...]
    sizes: Mapping[Cell, int]
    named: bool


class Record(ChangingGraph):
    """`inputs`: None for a program that reads one input of floats as it is; `start` is the node of the record."""

    def __init__(self, outputs: list[Node], layout: Layout) -> None:
        super().__init__(outputs)
        self._layout = layout
        self.start: Node = layout.start
        self.inputs: tuple[Input, ...] | None = None
        if not layout.named and not any(isinstance(node, FieldNode) for node in self.nodes):
            return
        self._name_floats()
        fields = [node for node in self.nodes if isinstance(node, FieldNode)]
        words: dict[Word, int] = {}
        try:
            self.inputs = tuple(self._input(at, fields, words) for at in range(len(layout.sources)))
        except ValueError as error:
            raise ModelLoadError.from_validation(error, "the inputs") from error
        self.start = InputNode(layout.start.place, (), sum(each.words for each in self.inputs))
        self.start.number = -1  # before everything that reads it
        self._slices: dict[tuple[int, int], Node] = {}
        for node in fields:
            part = self._part(node, [words[node.kind, cell] for cell in node.cells])
            self.redirect(node, part)
        self.refresh()

    def _name_floats(self) -> None:
        """Parts of the floats become fields of their own, so that a record holds no more than is read."""
        start, floats = self._layout.start, self._layout.floats
        for node in list(self.nodes):
            if isinstance(node, SliceNode) and node.sources[0] is start:
                cells = floats[node.start : node.start + node.width]
                self.replace(node, FieldNode(node.place, (), node.width, cells, "float"))
                self.refresh()
        if start in self.nodes:
            self.replace(start, FieldNode(start.place, (), start.width, floats, "float"))
            self.refresh()

    def _input(self, at: int, nodes: Sequence[FieldNode], words: dict[Word, int]) -> Input:
        """Field by field: values with the same rules and table are one field, in the order of their positions."""
        source = self._layout.sources[at]
        found: dict[_Alike, dict[Cell, None]] = {}
        for node in nodes:
            for cell in node.cells:
                if cell.source == at:
                    size = self._layout.sizes[cell] if node.kind == "id" else None
                    key = (node.kind, size, tuple(map(_shape_of, cell.rules)))
                    found.setdefault(key, {})[cell] = None
        fields = []
        for (kind, size, _), listed in found.items():
            cells = sorted(listed, key=lambda cell: cell.position)
            for cell in cells:
                words[kind, cell] = len(words)
            positions = tuple(cell.position for cell in cells)
            everything = positions == tuple(range(math.prod(source.shape)))
            fields.append(
                Field(
                    kind=kind,
                    size=size,
                    rules=_rules([cell.rules for cell in cells]),
                    positions=None if everything else positions,
                )
            )
        if not fields:  # nothing reads it, but callers still send it
            fields.append(Field(positions=(0,)) if math.prod(source.shape) > 1 else Field())
            words["float", Cell(at, 0)] = len(words)
        return Input(
            name=source.name,
            dtype=source.dtype,
            shape=source.shape,
            ragged=bool(found) and self._is_ragged(at, fields, nodes),
            vocabulary=source.vocabulary,
            unknown=source.unknown,
            fields=tuple(fields),
        )

    def _is_ragged(self, at: int, fields: list[Field], nodes: Sequence[FieldNode]) -> bool:
        """Whether rows may have fewer ids: bags alone read the input, all of it and as it is."""
        source = self._layout.sources[at]
        if (
            len(fields) > 1
            or len(source.shape) != 1
            or source.vocabulary
            or not source.dtype.startswith("int")
        ):
            return False
        everything = tuple(Cell(at, place) for place in range(source.shape[0]))
        nodes = [node for node in nodes if any(cell.source == at for cell in node.cells)]
        users = [user for node in nodes for user in self.users[node.number]]
        return all(node.kind == "id" and node.cells == everything for node in nodes) and all(
            isinstance(user, BagNode) and user.ragged and len(user.sources) == 1 for user in users
        )

    def _part(self, node: FieldNode, words: list[int]) -> Node:
        edges = [0, *(np.flatnonzero(np.diff(words) != 1) + 1).tolist(), len(words)]
        parts = [self._slice(node, words[first], words[last - 1] + 1) for first, last in pairwise(edges)]
        if len(parts) == 1:
            return parts[0]
        return ConcatNode(self._place(node.cells), tuple(parts), len(words))

    def _slice(self, node: FieldNode, start: int, stop: int) -> Node:
        if stop - start == self.start.width:
            return self.start
        if (start, stop) not in self._slices:
            made = SliceNode(self._place(node.cells), (self.start,), stop - start, start)
            self._slices[start, stop] = made
        return self._slices[start, stop]

    def _place(self, cells: Sequence[Cell]) -> Place:
        names = {self._layout.sources[cell.source].name for cell in cells}
        return Place("the input", names.pop() if len(names) == 1 else "inputs")


def _shape_of(rule: Rule) -> object:
    return Add if isinstance(rule, Add) else rule


def _rules(of_cells: list[tuple[Rule, ...]]) -> tuple[Rule, ...]:
    """One list of rules for values whose rules differ in what they add, at most."""
    made: list[Rule] = []
    for rules in zip(*of_cells, strict=True):
        if isinstance(rules[0], Add):
            numbers = tuple(rule.values[0] for rule in rules if isinstance(rule, Add))
            made.append(Add(values=numbers[:1] if len(set(numbers)) == 1 else numbers))
        else:
            made.append(rules[0])
    return tuple(made)
