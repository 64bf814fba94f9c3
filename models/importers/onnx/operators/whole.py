# SPDX-License-Identifier: Apache-2.0
"""Operators on whole numbers that a model is given: rules of its inputs, which the door applies in 64 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Constant, ElementNode, FieldNode, affine_of
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.building.whole_numbers import MIRRORED, Integers, is_ids
from fused_mlp.models.importers.onnx.functions import COMPARISONS
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.values import Value
from fused_mlp.models.program.inputs import Add, Divide

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader


def of_whole_numbers(reader: RowsReader, node: Node, inputs: list[Value]) -> Rows | None:  # noqa: PLR0911 - a table
    """None where the operator is not one of these: it computes with floats, or moves values."""
    builder, op = reader.builder, node.op
    x, numbers = _ids_and_numbers(inputs)
    if op == "Where":
        return _where(reader, inputs)
    if x is None:
        return None
    if op == "Clip":
        least, most = (_integers(each) for each in (*inputs[1:], None, None)[:2])
        return builder.clipped(x, least, most)
    if numbers is None or not isinstance(x.node, FieldNode):
        return None
    left = inputs[0] is x
    match op:
        case "Add":
            return builder.added(x, numbers)
        case "Sub" if left:
            return builder.added(x, -numbers)
        case "Mul":
            return builder.multiplied(x, numbers)
        case "Div" if left:
            return builder.divided(x, numbers)
        case "Mod" if left:
            return builder.remainder(x, numbers, truncated=bool(node.attributes.get("fmod", 0)))
        case "Max":
            return builder.clipped(x, numbers, None)
        case "Min":
            return builder.clipped(x, None, numbers)
    if op in COMPARISONS:
        return builder.compared(COMPARISONS[op] if left else MIRRORED[COMPARISONS[op]], x, numbers)
    return None


def _ids_and_numbers(inputs: list[Value]) -> tuple[Rows | None, Integers | None]:
    """The whole numbers that depend on a row, if they are one of at most two operands, and the constant beside them."""
    ids = [each for each in inputs if isinstance(each, Rows) and is_ids(each)]
    others = [each for each in inputs if each is not None and each not in ids]
    if len(ids) != 1:
        return None, None
    return ids[0], _integers(others[0]) if len(others) == 1 else None


def _integers(value: Value) -> Integers | None:
    if isinstance(value, Constant) and value.array.dtype.kind in "iub":
        return value.array.astype(np.int64)
    return None


def _where(reader: RowsReader, inputs: list[Value]) -> Rows | None:
    """A number in place of another, or a division that rounds down, as torch writes it: q - 1 or q."""
    condition, left, right = inputs
    if not isinstance(condition, Rows):
        return None
    if isinstance(left, Rows) and isinstance(right, Rows):
        return right if is_ids(left) and is_ids(right) and _is_one_less(left, right) else None
    x, holds = (right, True) if isinstance(right, Rows) else (left, False)
    by = _integers(left if holds else right)
    if by is None or not isinstance(x, Rows) or not is_ids(x):
        return None
    return reader.builder.replaced_where(condition, holds, by, x)


def _is_one_less(left: Rows, right: Rows) -> bool:
    """Whether it is q - 1 beside q, a quotient. Rules round down already: the check of the import proves the rest."""
    if (
        not isinstance(left.node, FieldNode)
        or not isinstance(right.node, FieldNode)
        or left.shape != right.shape
    ):
        return False
    pairs = zip(left.order, right.order, strict=True)
    cells = [(left.node.cells[a], right.node.cells[b]) for a, b in pairs]
    return all(
        b.rules and isinstance(b.rules[-1], Divide) and a == b._replace(rules=(*b.rules, Add(values=(-1,))))
        for a, b in cells
    )


def floor(reader: RowsReader, node: Node, x: Rows) -> Rows:
    """floor(n / d) of a whole number that the model is given, as torch's newer exporter writes n // d."""
    if is_ids(x):
        return x
    base = x.node.sources[0] if isinstance(x.node, ElementNode) else None
    found = affine_of(x.node.tree) if isinstance(x.node, ElementNode) else None
    if isinstance(base, FieldNode) and found is not None and found[1] == 0 and found[0] > 0:
        divisor = round(1 / found[0])
        whole = all("int" in reader.builder.sources[cell.source].dtype for cell in base.cells)
        if whole and abs(divisor * found[0] - 1) < 1e-12:
            return reader.builder.divided(reader.builder.as_whole(x.of(base)), np.array(divisor))
    raise ModelLoadError(f"{node.where} is not part of an MLP: of computed floats")
