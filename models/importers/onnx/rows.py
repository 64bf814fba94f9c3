# SPDX-License-Identifier: Apache-2.0
"""Follows the rows through an ONNX graph: each node is a constant, a view, or a call of the builder. What cannot be
read is an error only where an output needs it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Constant, Place
from fused_mlp.models.importers.building.rows import Rows, inserted
from fused_mlp.models.importers.onnx.bounds import most_computed
from fused_mlp.models.importers.onnx.categories import Categories
from fused_mlp.models.importers.onnx.constants import fold, has_row_count
from fused_mlp.models.importers.onnx.graph import Graph, Node
from fused_mlp.models.importers.onnx.operators import apply, hint
from fused_mlp.models.importers.onnx.operators.values import Unreadable, Value
from fused_mlp.models.importers.onnx.types import letter_of, type_of
from fused_mlp.models.importers.onnx.vocabularies import Vocabulary
from fused_mlp.models.program.spec import MAX_FEATURES

# Stands for the number of rows in shapes that a graph computes with: a prime above every width.
MANY = 1048583
_DOMAINS = ("", "ai.onnx.ml", "com.microsoft")


class RowsReader:
    """Visits the nodes, which ONNX keeps in topological order, and remembers every value by name. `labels` are the
    names of the classes, where the graph has them. `types` has the type of every value: f, i, b or s. `row_values`
    counts the values of a row, of all nodes together."""

    def __init__(self, graph: Graph, builder: Builder, vocabularies: Mapping[str, Vocabulary]) -> None:
        self._graph = graph
        self.builder = builder
        self.labels: tuple[str, ...] | None = None
        self.rows = graph.rows or MANY
        self.opset = next(
            (each.version for each in graph.model.opset_import if each.domain in ("", "ai.onnx")), 20
        )
        self._left = most_computed(graph.constants.values())
        self.row_values = 0
        self._for_rows: set[str] = set()  # constants that hold the same values for every row
        self._values: dict[str, Value] = {
            name: Constant(
                array, "" if "::" in name else name, array.dtype.name, quantized=name in graph.quantized
            )
            for name, array in graph.constants.items()
        }
        self.types = {name: letter_of(array.dtype) for name, array in graph.constants.items()}
        for given, rows in zip(graph.inputs, builder.inputs, strict=True):
            self.types[given.name] = given.type
            if given.shape is not None and len(given.shape) > rows.index.ndim:  # (rows, 1)
                rows = inserted(rows, 1)  # noqa: PLW2901
            vocabulary = vocabularies.get(given.name)
            self._values[given.name] = rows if vocabulary is None else Categories(rows, vocabulary.values)
            self._count(rows.index.size)

    def read(self) -> dict[str, Value]:
        """The graph's outputs."""
        for node in self._graph.nodes:
            made = self._visit(node)
            self._values.update(zip(node.outputs, made, strict=False))
            self.types.update((name, type_of(node, self.types)) for name in node.outputs)
        missing = Unreadable("no node makes it")
        return {output.name: self._values.get(output.name, missing) for output in self._graph.outputs}

    def _visit(self, node: Node) -> Sequence[Value]:
        inputs = [self._values.get(name) if name else None for name in node.inputs]
        for name in node.inputs:
            if name and name not in self._values:
                return self._unreadable(node, f"{node.where} uses {name!r}, which no node before it makes")
        for value in inputs:
            if isinstance(value, Unreadable):
                return [value] * len(node.outputs)
        try:
            with self.builder.at(Place(node.where, node.path)):
                if node.domain not in _DOMAINS:
                    raise ModelLoadError(f"{node.where} of {node.domain[:100]} is not part of an MLP")
                if any(isinstance(value, (Rows, Categories)) for value in inputs):
                    return self._counted(apply(self, node, inputs))
                return self._fold(node, cast(list[Constant | None], inputs))
        except ModelLoadError as error:
            return self._unreadable(node, str(error))
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:  # shapes that do not fit, operators of another version
            return self._unreadable(node, f"{node.where} cannot be read: {first_line(error)}")

    def _unreadable(self, node: Node, text: str) -> Sequence[Value]:
        return [Unreadable(text)] * max(1, len(node.outputs))

    def _fold(self, node: Node, inputs: list[Constant | None]) -> Sequence[Value]:
        first = inputs[0] if inputs else None
        if first is not None and node.op == "Identity":
            return [first]
        if first is not None and node.op == "Transpose" and len(first.shape) == 2:
            return [first.matrix_transposed if node.attributes.get("perm", [1, 0]) == [1, 0] else first]
        arrays = [None if each is None else each.array for each in inputs]
        made = fold(node, arrays, self.opset, self.rows, self._left)
        if made is None:
            return self._unreadable(node, f"{node.where} is not part of an MLP{hint(node.op)}")
        self._take(sum(array.size for array in made))
        if has_row_count(node, arrays, self.rows) or self._for_rows.intersection(node.inputs):
            self._for_rows.update(node.outputs)
            self._count(sum(array.size for array in made))
        quantized = any(each is not None and each.quantized for each in inputs)
        return [Constant(array, "", array.dtype.name, quantized=quantized) for array in made]

    def _counted(self, made: Sequence[Value]) -> Sequence[Value]:
        for each in made:
            rows = each.ids if isinstance(each, Categories) else each
            if isinstance(rows, Rows):
                self._count(rows.index.size)
            if isinstance(each, Categories):
                self._take(each.values.size)
        return made

    def _count(self, size: int) -> None:
        self.row_values += size
        if self.row_values > MAX_FEATURES:
            raise ModelLoadError(f"all values of a row: expected at most {MAX_FEATURES}, got more up to here")

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ModelLoadError(
                "its constants become too large for an MLP: expected weights to be in the file"
            )

    def sizes(self, x: Rows) -> list[int]:
        """The shape as the graph sees it, with `rows` for the number of rows."""
        return [size * self.rows if axis == x.rows_at else size for axis, size in enumerate(x.shape)]

    def split_rows(self, x: Rows, sizes: Sequence[int]) -> tuple[list[int], int]:
        """(shape, rows_at) that these sizes of the graph mean for the values of x."""
        known = [int(size) for size in sizes]
        if known.count(-1) == 1:
            rest = math.prod(size for size in known if size != -1)
            known[known.index(-1)] = self.rows * x.index.size // rest if rest else 0
        for axis, size in enumerate(known):
            shape = [*known[:axis], size // self.rows, *known[axis + 1 :]]
            if size % self.rows == 0 and math.prod(shape) == x.index.size:
                return shape, axis
        raise ModelLoadError(
            f"a shape of {list(map(int, sizes))} does not keep the values of each row together"
        )
