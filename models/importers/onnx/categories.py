# SPDX-License-Identifier: Apache-2.0
"""Values that are a function of one id: words, codes, and what a graph makes of them before it computes with floats.
They are tables; operators on them run on the tables, once, while the file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import ArgmaxNode, BucketizeNode, Constant
from fused_mlp.models.importers.building.nodes import Node as GraphNode
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.onnx.constants import fold
from fused_mlp.models.importers.onnx.functions import ARITHMETIC, COMPARISONS, FUNCTIONS
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.weights.dtypes import Array

# Codes that lie so close together are ids of a table; others need a vocabulary.
MAX_RANGE = 1 << 16
_ELEMENTWISE = {
    *ARITHMETIC, *COMPARISONS, *FUNCTIONS, "Cast", "Not", "And", "Or", "Xor", "Mod", "Where", "Clip", "Floor", "Ceil",
    "IsNaN", "Identity",
}  # fmt: skip

_MAX_CATEGORIES = 1 << 22  # values of an array that folding makes of keys and places


@dataclass(frozen=True, eq=False)
class Categories:
    """values[id] for each of the ids, in their shape. values: (size,), numbers or texts."""

    ids: Rows
    values: Array

    def floats(self, builder: Builder) -> Rows:
        if self.values.dtype.kind in "OUS":
            raise ModelLoadError("expected numbers, got texts: a model answers floats")
        return builder.embedding(self.ids, _table(self.values))

    def rows_of(self, builder: Builder, table: Constant) -> Rows:
        """The rows of a table that the values stand for, as a graph counts them: -1 is the last."""
        size, places = table.shape[0], self.values
        if places.dtype.kind not in "iu" or (places < -size).any() or (places >= size).any():
            raise ModelLoadError(
                f"expected ids of a table of {size} rows, got {places.min()} to {places.max()}"
            )
        if len(places) == size and bool((places == np.arange(size)).all()):
            return builder.embedding(self.ids, table)
        return builder.embedding(self.ids, table.of(table.array[places]))

    def mapped(self, found: Mapping[Any, Any], default: Any, dtype: Any) -> Categories:
        made = np.empty(len(self.values), dtype)
        made[:] = [found.get(each, default) for each in self.values.tolist()]
        return Categories(self.ids, made)


def between(builder: Builder, x: Rows, least: int, most: int) -> Categories:
    """Whole numbers from least to most, with one more at either end for all that are beyond."""
    if (count := _count(x.node)) is not None:
        return Categories(x, np.arange(count, dtype=np.int64))
    if most - least > MAX_RANGE:
        raise ModelLoadError(
            f"codes from {least} to {most}: expected at most {MAX_RANGE} numbers between the least and the largest"
        )
    clipped = builder.clipped(x, np.array(least - 1), np.array(most + 1))
    return Categories(
        builder.added(clipped, np.array(1 - least)), np.arange(least - 1, most + 2, dtype=np.int64)
    )


def _count(node: GraphNode) -> int | None:
    """How many different ids a node may compute; None if it computes none."""
    if isinstance(node, ArgmaxNode):
        return node.sources[0].width
    return node.boundaries.array.size + 1 if isinstance(node, BucketizeNode) else None


def folded(node: Node, inputs: Sequence[object], opset: int) -> Categories | None:
    """The result of an operator on categories of the same ids, and numbers; None for other operators."""
    some = [each for each in inputs if isinstance(each, Categories)]
    first = some[0]
    if node.op not in _ELEMENTWISE or not all(_same(each, first) for each in some):
        return None
    arrays: list[Array | None] = []
    for each in inputs:
        if isinstance(each, Categories):
            arrays.append(each.values)
        elif isinstance(each, Constant) and each.array.size == 1:
            arrays.append(each.array.reshape(()))
        elif each is None:
            arrays.append(None)
        else:
            return None
    made = fold(node, arrays, opset, 1, _MAX_CATEGORIES)
    return None if made is None else Categories(first.ids, made[0].reshape(len(first.values)))


def _same(one: Categories, other: Categories) -> bool:
    return (
        one.ids.node is other.ids.node
        and len(one.values) == len(other.values)
        and np.array_equal(one.ids.index, other.ids.index)
    )


def _table(values: Array) -> Constant:
    return Constant(values.astype(np.float32) if values.dtype.kind != "f" else values, "", "")
