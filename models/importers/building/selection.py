# SPDX-License-Identifier: Apache-2.0
"""Features of a node, in any order, as nodes of their own: slices, concatenations, products with a matrix of zeros and
ones. The lowest layer of the builder, which knows where the source is and which nodes there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.formula import FormulaError
from fused_mlp.models.importers.building.nodes import (
    ConcatNode,
    Constant,
    Indices,
    LinearNode,
    Node,
    Place,
    SliceNode,
    order_of,
)
from fused_mlp.models.importers.building.rows import Rows, whole

# More parts than this are no MLP any more: a convolution or a sequence, whose parts are rows of their own.
MAX_PARTS = 256
# Of a matrix that the builder makes itself, to sum up or pick features.
MAX_MATRIX = 1 << 24
# Of features that are put together from parts of a value. More parts, or short ones again and again, are a product with
# a matrix of zeros and ones, which costs less, but in which a NaN of one feature reaches all.
_MAX_RUNS = 64
_MIN_RUN = 4
ANY_FEATURE = Place("a constant", "constant")


class Selection:
    """What the other parts of the builder are made on: each inherits from it, and Builder from all of them."""

    def __init__(self, rows: Rows, trainable: bool) -> None:
        self.input = rows
        self._trainable = trainable
        self._place = rows.node.place
        self._nodes: dict[tuple[object, ...], Node] = {}  # by what they compute: equal ones are made once

    def _once(self, key: tuple[object, ...], weights: Sequence[Constant | None], made: Node) -> Node:
        """The first node of that key and these tensors of the source: a module that is called twice for the same value
        is computed once."""
        if any(each is not None and not each.origin for each in weights):
            return made  # computed from tensors: which, is not known any more
        names = (each and (each.origin, each.shape) for each in weights)
        return self._nodes.setdefault((*key, *names), made)

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Where the calls within are, for names and errors."""
        self._place = place
        try:
            yield
        except ModelLoadError as error:
            text = str(error)
            raise ModelLoadError(text if text.startswith(str(place)) else f"{place}: {text}") from None
        except FormulaError as error:
            raise ModelLoadError(f"{place}: {error}") from None

    def flat(self, x: Rows) -> Node:
        """A node with the features of x in row-major order."""
        return self._gather(x.node, x.order)

    def _gather(self, node: Node, order: Indices) -> Node:
        size = order.size
        if size == node.width and bool((order == np.arange(size)).all()):
            return node
        key = ("gather", node.number, order.tobytes())
        if key in self._nodes:
            return self._nodes[key]
        starts = np.flatnonzero(np.diff(order, prepend=order[0] - 2) != 1)  # of runs of neighbours
        plain = size >= _MIN_RUN * starts.size or starts.size <= 2 or np.unique(order).size == size
        if plain and starts.size <= _MAX_RUNS and not (node.width == 1 and size > 1):
            ends = [*starts[1:], size]
            runs = [
                self._slice(node, int(order[start]), int(order[start]) + int(end - start))
                for start, end in zip(starts, ends, strict=True)
            ]
            made = self._side_by_side(runs)
        else:
            if size * node.width > MAX_MATRIX:
                raise ModelLoadError(
                    f"{size} features picked out of {node.width} in no order: too large a matrix"
                )
            matrix = np.zeros((size, node.width))
            matrix[np.arange(size), order] = 1
            role: Literal["broadcast", "select"] = "broadcast" if node.width == 1 else "select"
            made = LinearNode(self._place, (node,), size, Constant(matrix, fixed=True), None, role)
        self._nodes[key] = made
        return made

    def _slice(self, node: Node, start: int, stop: int) -> Node:
        if start == 0 and stop == node.width:
            return node
        if isinstance(node, ConcatNode):  # a part of one of its parts, or several that were made apart
            edges = np.cumsum([0, *(part.width for part in node.sources)]).tolist()
            for edge, part in zip(edges, node.sources, strict=False):
                if edge <= start and stop <= edge + part.width:
                    return self._slice(part, start - edge, stop - edge)
            if start in edges and stop in edges and order_of(node) is None:
                return self._side_by_side(list(node.sources[edges.index(start) : edges.index(stop)]))
        key = ("slice", node.number, start, stop)
        return self._nodes.setdefault(key, SliceNode(self._place, (node,), stop - start, start))

    def _side_by_side(self, nodes: Sequence[Node]) -> Node:
        if len(nodes) == 1:
            return nodes[0]
        key = ("concat", *(node.number for node in nodes))
        return self._nodes.setdefault(
            key, ConcatNode(self._place, tuple(nodes), sum(node.width for node in nodes))
        )

    def _constant_node(self, constant: Constant) -> Node:
        """The same values, (width,), for every row: a product with zeros, and a bias."""
        start = self.input.node  # any one value will do
        narrow = start if start.width == 1 else SliceNode(ANY_FEATURE, (start,), 1, 0)
        zeros = Constant(np.zeros((constant.array.size, 1)), fixed=True)
        return LinearNode(self._place, (narrow,), constant.array.size, zeros, constant)

    def _compact(self, x: Rows) -> Rows:
        """x of a node that has not more features than x needs, for what is computed feature by feature."""
        return x if x.index.size >= x.node.width else whole(self.flat(x), x.shape, x.rows_at)

    def _axes(self, x: Rows, axes: Sequence[int]) -> list[int]:
        at = sorted({x.axis(axis) for axis in axes})
        if x.rows_at in at:
            raise ModelLoadError(
                "it goes over the rows: the answer for a row must not depend on the rows beside it"
            )
        return at

    def _parts(self, parts: Sequence[Any]) -> Sequence[Any]:
        if len(parts) > MAX_PARTS:
            raise ModelLoadError(
                f"the same step for {len(parts)} parts of a row: expected at most {MAX_PARTS}; make rows of them"
            )
        return parts
