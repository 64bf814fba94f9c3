# SPDX-License-Identifier: Apache-2.0
"""`Builder`: what every reader of graphs builds an MLP with. A reader goes through its graph in order and calls one
method per operation; the builder recognises, and `finish` folds, names and gives the Mlp. Most of
these methods are functions of the other modules of this room.

    builder = Builder(in_features=8)                      # or input_shape=(3, 8), or sources=[Source("user", ()), ...]
    with builder.at(Place("layer fc1: linear", "fc1")):   # where in the source the calls within are
        x = builder.linear(builder.input, weight, bias)   # Constant(array, origin="fc1.weight", dtype="float32")
        x = builder.function("relu", x)                   # any name of models/program/formula.py, with its numbers
        x = builder.arithmetic("add", x, builder.input)   # of two Rows, a Rows and a Constant, or a float
    builder.output("output", x)
    mlp = builder.finish(dtype=None)

A value is a `Rows` (see rows.py): a node, and an index in the shape of the source's tensor, rows' axis included. Views
are functions of rows.py and cost nothing: reshaped, permuted, inserted, removed, expanded, taken. Operations that
take several axes (`linear`, `softmax`, `norm`, `reduce`, `concat`) take the source's axes. Nothing that no output
needs becomes a step, so that readers may build what turns out to be dead.

What cannot be represented raises ModelLoadError, which `builder.at` starts with the place: call the functions of
rows.py within it as well. `builder.exact()` is the program with its weights
in float64, for `verification.verify`, which every reader ends with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building import arithmetic as pairs
from fused_mlp.models.importers.building import features, functions, lookups, products
from fused_mlp.models.importers.building import whole_numbers as ids
from fused_mlp.models.importers.building.nodes import (
    Cell,
    Constant,
    Indices,
    InputNode,
    Node,
    Place,
    SliceNode,
    Source,
    kind_of,
    live_nodes,
    order_of,
)
from fused_mlp.models.importers.building.rows import Rows, check_width, whole
from fused_mlp.models.importers.building.selection import ANY_FEATURE, NodeGraph
from fused_mlp.models.importers.finishing.program import finish
from fused_mlp.models.importers.finishing.records import Layout
from fused_mlp.models.program.spec import Dtype
from fused_mlp.models.weights.mlp import Mlp


class Builder(NodeGraph):
    """`trainable`: a number of the source that is a parameter, such as the slope of a PReLU, stays a tensor of the
    program instead of becoming part of a formula. `sources`: the inputs of a model that has several, or takes whole
    numbers; `inputs` has their values, in the same order. `apart`: no matrix of zeros and ones moves or sums features.
    NaN and infinity then stay in their own features, at the price of more steps."""

    # The other methods that readers call: functions of a graph, each in the module that it is taken from.
    function, apply, power = functions.function, functions.apply, functions.power
    arithmetic, compare, where = pairs.arithmetic, pairs.compare, pairs.where
    extreme, is_nan, fill_nan, prelu = pairs.extreme, pairs.is_nan, pairs.fill_nan, pairs.prelu
    softmax, norm, batch_norm = features.softmax, features.norm, features.batch_norm
    group_norm, scale_channels = features.group_norm, features.scale_channels
    reduce, variance, log_sum_exp = features.reduce, features.variance, features.log_sum_exp
    linear, matmul, check_attention = products.linear, products.matmul, products.check_attention
    summed_products = products.summed_products
    as_floats, as_ids, as_whole, cut_off = ids.as_floats, ids.as_ids, ids.as_whole, ids.cut_off
    added, multiplied, divided = ids.added, ids.multiplied, ids.divided
    remainder, clipped = ids.remainder, ids.clipped
    compared, opposite, replaced_where = ids.compared, ids.opposite, ids.replaced_where
    embedding, one_hot, bag = lookups.embedding, lookups.one_hot, lookups.bag
    bucketize, argmax, pick = lookups.bucketize, lookups.argmax, lookups.pick

    def __init__(
        self,
        in_features: int = 0,
        input_shape: Sequence[int] | None = None,
        *,
        sources: Sequence[Source] | None = None,
        trainable: bool = False,
        apart: bool = False,
    ) -> None:
        self._shape = None if input_shape is None else tuple(input_shape)
        self._outputs: list[tuple[str, Node, bool]] = []
        self._named = sources is not None
        self.sources = tuple(sources or (Source("input", self._shape or (in_features,)),))
        check_width(sum(math.prod(source.shape) for source in self.sources))
        cells = [
            [Cell(at, each) for each in range(math.prod(source.shape))]
            for at, source in enumerate(self.sources)
        ]
        is_float = [source.dtype.startswith(("float", "bfloat")) for source in self.sources]
        floats = [cell for each, listed in zip(is_float, cells, strict=True) if each for cell in listed]
        start = InputNode(Place("the input", "input"), (), len(floats))
        super().__init__(whole(start, self._shape and (1, *self._shape)), trainable, floats, apart)
        self.inputs: list[Rows] = []
        at = 0
        for each, listed, source in zip(is_float, cells, self.sources, strict=True):
            shape = (1, *source.shape)
            if each:
                self.inputs.append(Rows(start, np.arange(at, at + len(listed)).reshape(shape)))
                at += len(listed)
            else:
                self.inputs.append(whole(self.fields(tuple(listed), "id"), shape))

    # Side by side

    def concat(self, parts: Sequence[Rows | Constant], axis: int) -> Rows:
        first = next(part for part in parts if isinstance(part, Rows))
        at = first.axis(axis)
        if at == first.rows_at:
            raise ModelLoadError(
                "it puts rows together: every row of an answer comes from one row of the input"
            )
        rows = [part if isinstance(part, Rows) else self._constant_rows(part, first) for part in parts]
        if len({kind_of(each.node) for each in rows}) > 1:
            rows = [self.as_floats(each) for each in rows]
            first = rows[0]
        if any(each.rows_at != first.rows_at for each in rows):
            raise ModelLoadError("it puts values together whose rows lie on different axes")
        if all(each.node is first.node for each in rows):
            return Rows(first.node, np.concatenate([each.index for each in rows], at), first.rows_at)
        indices, nodes, offset = [], [], 0
        for each in rows:
            node, index = (each.node, each.index) if each.is_permuted else (self.flat(each), _own_order(each))
            indices.append(index + offset)
            nodes.append(node)
            offset += node.width
        return Rows(self.side_by_side(nodes), np.concatenate(indices, at), first.rows_at)

    def constant(self, part: Constant) -> Rows:
        """The same values for every row. part: (1, ...)."""
        return self._constant_rows(part, Rows(self.input.node, np.zeros(part.shape, np.intp)))

    def filled(self, part: Constant, like: Rows) -> Rows:
        """The constant, for every row, in the shape of a value."""
        return self._constant_rows(part.of(np.broadcast_to(part.exact, like.shape)), like)

    def _constant_rows(self, part: Constant, like: Rows) -> Rows:
        if len(part.shape) != like.index.ndim or part.shape[like.rows_at] != 1:
            raise ModelLoadError(f"expected a constant with one entry for all rows, got shape {part.shape}")
        node = self.constant_node(replace(part, array=part.exact.reshape(-1)))
        return whole(node, part.shape, like.rows_at)

    def replaced(self, x: Rows, axis: int, positions: slice | int, part: Rows) -> Rows:
        """x with other features at some positions of an axis."""
        at = x.axis(axis)
        if at == x.rows_at:
            raise ModelLoadError("it writes to some rows: every row is answered in the same way")
        key = (slice(None),) * at + (positions,)
        index = np.array(x.index)
        index[key] = part.index + x.node.width
        return Rows(self.side_by_side([x.node, part.node]), index, x.rows_at)

    # The end

    def output(self, name: str, x: Rows) -> None:
        """`name`: what callers know it by. (rows, n), or (rows,), which the model is then known to squeeze to. Axes of
        length 1 at the end are left out: (rows, n, 1)."""
        x = self.as_floats(x)
        if x.rows_at == 0 and x.index.ndim > 2 and set(x.shape[2:]) == {1}:
            x = Rows(x.node, x.index.reshape(x.shape[:2]))
        if x.rows_at != 0 or x.index.ndim > 2 or x.shape[0] != 1:
            rows = "rows" if x.shape[x.rows_at] == 1 else f"{x.shape[x.rows_at]} * rows"
            shape = tuple(rows if axis == x.rows_at else str(size) for axis, size in enumerate(x.shape))
            raise ModelLoadError(
                f"output {name!r} has shape ({', '.join(shape)}): expected (rows, n); flatten it, "
                "or make rows of the rest"
            )
        self._outputs.append((name, self.flat(x), x.index.ndim == 1))

    def takes_parts(self) -> bool:
        """Whether nothing uses the whole input, so that its width is not told by what uses it."""
        nodes = live_nodes([node for _, node, _ in self._outputs])
        users = [node for node in nodes if self.input.node in node.sources and node.place is not ANY_FEATURE]
        orders = [found[1] for node in nodes if (found := order_of(node)) and found[0] is self.input.node]
        if any(order.size >= self.input.node.width for order in orders):
            return False  # all of it, in another order
        return bool(users) and all(isinstance(node, SliceNode) for node in users)

    def finish(self, dtype: Dtype | None = None) -> Mlp:
        """`dtype` None keeps the source's where it is one we serve; asking for one rounds."""
        self._program = finish(
            Layout(self.input.node, self.sources, tuple(self.float_cells), self.sizes, self._named),
            self._shape,
            self._outputs,
            dtype,
            trainable=self.trainable,
        )
        return self._program.mlp

    def exact(self) -> Mlp:
        """The finished program with its tensors in float64, as folded: what `verification` compares."""
        return self._program.exact

    def origins(self) -> dict[str, str]:
        """The name in the source of each tensor of the finished program that was taken over unchanged."""
        return self._program.origins

    def fixed(self) -> frozenset[str]:
        """The tensors of the finished program that hold none of the source's weights."""
        return self._program.fixed


def _own_order(x: Rows) -> Indices:
    return np.arange(x.index.size, dtype=np.intp).reshape(x.shape)
