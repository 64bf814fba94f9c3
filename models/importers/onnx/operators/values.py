# SPDX-License-Identifier: Apache-2.0
"""Shared by the readers of ONNX operators: the values of a graph, and how they take their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.arithmetic import Operand
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.onnx.categories import Categories
from fused_mlp.models.importers.onnx.functions import shortest
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.weights.dtypes import Array

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader


@dataclass(frozen=True)
class Unreadable:
    """A value that no step makes, and why: an error where an output needs it."""

    text: str


Value = Rows | Categories | Constant | Unreadable | None  # None: an optional input left out
# (reader, node, x, inputs) -> value or values; x is the first input, of rows.
Reader = Callable[["RowsReader", Node, Rows, list[Value]], Value | Sequence[Value]]


def needed(value: Value) -> Rows | Constant:
    if not isinstance(value, (Rows, Constant)):
        raise ModelLoadError("an input is missing")
    return value


def operand(value: Value) -> Operand:
    """Numbers as short as they were written: 1.702, not 1.7020000219."""
    given = needed(value)
    if isinstance(given, Constant) and given.array.size == 1 and given.array.dtype.kind == "f":
        return shortest(given.array.reshape(-1)[0])
    return given


def array_of(value: Value, node: Node) -> Array:
    if not isinstance(value, Constant):
        raise ModelLoadError(f"{node.where}: expected a constant where it has something computed")
    return value.array


def ints(node: Node, inputs: list[Value], at: int, name: str) -> list[int] | None:
    """A list that is an attribute in old opsets and an input in new ones."""
    if len(inputs) > at and inputs[at] is not None:
        return [int(each) for each in array_of(inputs[at], node).reshape(-1)]
    given = node.attributes.get(name)
    return None if given is None else [int(each) for each in given]
