# SPDX-License-Identifier: Apache-2.0
"""Features of a node, in any order, as nodes of their own: slices, concatenations, products with a matrix of zeros and
ones. The lowest layer of the builder, which knows where the source is and which nodes there are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import (
    Cell,
    CombineNode,
    ConcatNode,
    Constant,
    DotNode,
    ElementNode,
    FieldNode,
    Indices,
    LinearNode,
    Node,
    Place,
    RepeatNode,
    SliceNode,
    kind_of,
    order_of,
)
from fused_mlp.models.importers.building.rows import OVER_ROWS, Rows, whole
from fused_mlp.models.program import formula
from fused_mlp.models.program.formula import FormulaError
from fused_mlp.models.program.inputs import Clip
from fused_mlp.models.program.spec import Comparison, Kind

# A model with more parts is no MLP: a convolution or a sequence, whose parts are rows of their own.
MAX_PARTS = 256
# The largest matrix that the builder makes itself, to sum or pick features.
MAX_MATRIX = 1 << 24
# From this size on, a matrix of zeros and ones costs more than a step of its own.
LARGE_MATRIX = 1024
# Below this width, repeated features are still a product with such a matrix: it takes in what follows.
_MIN_REPEATED = 16
# A matrix of this size is worth putting features in order earlier.
_HUGE_MATRIX = 1 << 18
MAX_CONCAT = 1024
# Limits for putting features together from parts of a value. More parts, or repeated short ones, become a product with
# a matrix of zeros and ones: it costs less, but spreads a NaN of one feature to all.
_MAX_RUNS = 64
_MIN_RUN = 4
ANY_FEATURE = Place("a constant", "constant")


class NodeGraph:
    """The nodes that a reader has made. The other modules of this room are functions of it; Builder is one of these,
    with all of those functions as its methods."""

    def __init__(self, rows: Rows, trainable: bool, float_cells: Sequence[Cell], apart: bool = False) -> None:
        self.input = rows
        self.float_cells = float_cells  # what each feature of `input` is
        self.sizes: dict[Cell, int] = {}  # of ids: rows of the smallest table that they are looked up in
        self.comparisons: dict[int, tuple[Comparison, Rows, Any]] = {}  # of ids with numbers
        self.product_numbers: set[int] = set()  # nodes that are products of computed values
        self.trainable = trainable
        self.apart = apart
        self.place = rows.node.place
        self.nodes: dict[tuple[object, ...], Node] = {}  # by what they compute: equal ones are made once

    def once(self, key: tuple[object, ...], weights: Sequence[Constant | None], made: Node) -> Node:
        """The first node of that key and these tensors of the source: a module that is called twice for the same value
        is computed once."""
        if any(each is not None and not each.origin for each in weights):
            return made  # computed from several tensors: the key cannot say which
        names = (each and (each.key, each.shape) for each in weights)
        return self.nodes.setdefault((*key, *names), made)

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Where the calls within are, for names and errors."""
        self.place = place
        try:
            yield
        except ModelLoadError as error:
            text = str(error)
            raise ModelLoadError(text if text.startswith(str(place)) else f"{place}: {text}") from None
        except FormulaError as error:
            raise ModelLoadError(f"{place}: {error}") from None

    def flat(self, x: Rows) -> Node:
        """A node with the features of x in row-major order."""
        return self.gather(x.node, x.order)

    def gather(self, node: Node, order: Indices) -> Node:
        size = order.size
        if size == node.width and bool((order == np.arange(size)).all()):
            return node
        if isinstance(node, FieldNode) and (node.kind == "id" or np.unique(order).size == size):
            return self.fields(tuple(node.cells[at] for at in order), node.kind, node.single)
        if isinstance(node, DotNode) and node.itself and not _of_themselves(node.groups)[order].any():
            return self.gather(self.between(node), np.cumsum(~_of_themselves(node.groups))[order] - 1)
        key = ("gather", node.number, order.tobytes())
        if key in self.nodes:
            return self.nodes[key]
        starts = np.flatnonzero(np.diff(order, prepend=order[0] - 2) != 1)  # of runs of neighbours
        made = self.repeated(node, order)
        if made is None and starts.size > _MAX_RUNS and size * node.width > _HUGE_MATRIX:
            made = self.reordered(node, order)
        self.nodes[key] = self.picked(node, order, starts) if made is None else made
        return self.nodes[key]

    def picked(self, node: Node, order: Indices, starts: Indices) -> Node:
        """Runs of features side by side, or a product with a matrix of zeros and ones. starts: of the runs."""
        size = order.size
        plain = size >= _MIN_RUN * starts.size or starts.size <= 2 or np.unique(order).size == size
        copied = kind_of(node) == "id" or (self.apart and node.width > 1)
        if copied or (plain and starts.size <= _MAX_RUNS and not (node.width == 1 and size > 1)):
            ends = [*starts[1:], size]
            runs = [
                self.cut(node, int(order[start]), int(order[start]) + int(end - start))
                for start, end in zip(starts, ends, strict=True)
            ]
            return self.side_by_side(runs)
        if size * node.width > MAX_MATRIX:
            raise ModelLoadError(
                f"{size} features picked out of {node.width} in no order: too large a matrix"
            )
        matrix = np.zeros((size, node.width))
        matrix[np.arange(size), order] = 1
        role: Literal["broadcast", "select"] = "broadcast" if node.width == 1 else "select"
        return LinearNode(self.place, (node,), size, Constant(matrix, fixed=True), None, role)

    def reordered(self, node: Node, order: Indices) -> Node | None:
        """The same features, put in order before they were computed, where fewer are: of outer products."""
        if isinstance(node, CombineNode):
            left, right = (self.gather(source, order) for source in node.sources)
            return CombineNode(self.place, (left, right), order.size, node.op)
        if isinstance(node, RepeatNode):
            length = node.sources[0].width // node.groups
            return self.gather(node.sources[0], order // (length * node.times) * length + order % length)
        return None

    def repeated(self, node: Node, order: Indices) -> Node | None:
        """Features of which each run is there several times: a, a, b, b; None if they are not in such an order."""
        values, counts = np.unique(order, return_counts=True)
        times = int(counts[0])
        small = node.width < _MIN_REPEATED or order.size * node.width < LARGE_MATRIX
        if (small and not (self.apart and node.width > 1)) or times == 1 or (counts != times).any():
            return None
        length = int(np.argmax(order[1:] == order[0])) + 1  # of one vector
        if values.size % length:
            return None
        groups = values.size // length
        first = order.reshape(groups, times, length)[:, 0].reshape(-1) if order.size % length == 0 else values
        if not np.array_equal(np.repeat(first.reshape(groups, 1, length), times, 1).reshape(-1), order):
            return None
        return RepeatNode(self.place, (self.gather(node, first),), order.size, groups, times)

    def between(self, node: DotNode) -> Node:
        """The products of different vectors alone."""
        groups = node.groups
        made = DotNode(self.place, node.sources, groups * (groups - 1) // 2, groups, itself=False)
        return self.nodes.setdefault(("dot", node.sources[0].number, groups), made)

    def fields(self, cells: tuple[Cell, ...], kind: Kind, single: bool = False) -> Node:
        key = ("fields", kind, cells, single)
        return self.nodes.setdefault(key, FieldNode(self.place, (), len(cells), cells, kind, single))

    def cut(self, node: Node, start: int, stop: int) -> Node:
        if start == 0 and stop == node.width:
            return node
        if isinstance(node, FieldNode):
            return self.fields(node.cells[start:stop], node.kind, node.single)
        if isinstance(node, ConcatNode):  # a part of one of its parts, or several that were made apart
            edges = np.cumsum([0, *(part.width for part in node.sources)]).tolist()
            for edge, part in zip(edges, node.sources, strict=False):
                if edge <= start and stop <= edge + part.width:
                    return self.cut(part, start - edge, stop - edge)
            if start in edges and stop in edges and order_of(node) is None:
                return self.side_by_side(list(node.sources[edges.index(start) : edges.index(stop)]))
        key = ("slice", node.number, start, stop)
        return self.nodes.setdefault(key, SliceNode(self.place, (node,), stop - start, start))

    def side_by_side(self, nodes: Sequence[Node]) -> Node:
        if len(nodes) == 1:
            return nodes[0]
        fields = [node for node in nodes if isinstance(node, FieldNode)]
        if len(fields) == len(nodes) and len({(node.kind, node.single) for node in fields}) == 1:
            cells = tuple(cell for node in fields for cell in node.cells)
            return self.fields(cells, fields[0].kind, fields[0].single)
        if len(nodes) > MAX_CONCAT:
            size = math.ceil(len(nodes) / MAX_CONCAT)
            nodes = [self.side_by_side(nodes[at : at + size]) for at in range(0, len(nodes), size)]
        key = ("concat", *(node.number for node in nodes))
        return self.nodes.setdefault(
            key, ConcatNode(self.place, tuple(nodes), sum(node.width for node in nodes))
        )

    def constant_node(self, constant: Constant) -> Node:
        """The same values, (width,), for every row: a product of zeros with a sign, which no NaN and no infinity
        changes, and a bias."""
        start = self.input.node  # any one value will do
        if start.width == 0:  # of models that take ids alone
            start = self.fields((Cell(0, 0, (Clip(least=0, most=0),)),), "float")
        narrow = start if start.width == 1 else SliceNode(ANY_FEATURE, (start,), 1, 0)
        if not isinstance(start, FieldNode):
            sign = formula.call("sign", formula.x())
            narrow = ElementNode(ANY_FEATURE, (narrow,), 1, sign, formula.of(sign))
        zeros = Constant(np.zeros((constant.array.size, 1)), fixed=True)
        return LinearNode(self.place, (narrow,), constant.array.size, zeros, constant)

    def compact(self, x: Rows) -> Rows:
        """x of a node that has not more features than x needs, for what is computed feature by feature."""
        return x if x.index.size >= x.node.width else whole(self.flat(x), x.shape, x.rows_at)

    def axes(self, x: Rows, axes: Sequence[int]) -> list[int]:
        at = sorted({x.axis(axis) for axis in axes})
        if x.rows_at in at:
            raise ModelLoadError(OVER_ROWS)
        return at

    def parts(self, parts: Sequence[Any]) -> Sequence[Any]:
        if len(parts) > MAX_PARTS:
            raise ModelLoadError(
                f"the same step for {len(parts)} parts of a row: expected at most {MAX_PARTS}; make rows of them"
            )
        return parts


def _of_themselves(groups: int) -> Any:
    """Which of the products of a DotNode are of a vector with itself."""
    first, second = np.tril_indices(groups)
    return first == second
