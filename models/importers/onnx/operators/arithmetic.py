# SPDX-License-Identifier: Apache-2.0
"""Operators that compute value by value: arithmetic, and functions whose numbers are inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.arithmetic import Operand
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.building.whole_numbers import is_ids
from fused_mlp.models.importers.onnx.functions import ARITHMETIC, shortest
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.values import Reader, Value, array_of, operand
from fused_mlp.models.importers.onnx.operators.whole import floor
from fused_mlp.models.importers.onnx.types import type_of

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader


def arithmetic(builder: Builder, op: str, inputs: list[Value]) -> Value:
    total = operand(inputs[0])
    for each in inputs[1:]:
        other = operand(each)
        if isinstance(total, Rows) or isinstance(other, Rows):
            total = builder.arithmetic(ARITHMETIC.get(op, "add"), total, other)
        else:  # constants in front: max(0, 1, x)
            raise ModelLoadError("constants before the rows are not read")
    if op == "Mean":
        total = builder.arithmetic("divide", total, float(len(inputs)))
    return cast(Rows, total)


def combined(builder: Builder, op: str, left: Operand, right: Operand) -> Rows:
    """And, Or and Xor of truths, which are 0.0 and 1.0."""
    if op == "Xor":
        return builder.compare("not_equal", left, right)
    return builder.arithmetic("multiply" if op == "And" else "maximum", left, right)


def _not(reader: RowsReader, _: Node, x: Rows, __: list[Value]) -> Rows:
    return reader.builder.opposite(x) or reader.builder.arithmetic("subtract", 1.0, x)


def _is_nan(reader: RowsReader, _: Node, x: Rows, __: list[Value]) -> Rows:
    return reader.builder.is_nan(x)


def _same(_: RowsReader, __: Node, x: Rows, ___: list[Value]) -> Rows:
    return x


def _cast(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    """Whole numbers stay what they are until a float is needed; floats that the model is given are cut off."""
    given, wanted = reader.types.get(node.inputs[0], "f"), type_of(node, reader.types)
    if wanted == "s":
        raise ModelLoadError(f"{node.where} to text is not part of an MLP")
    if wanted == "f":
        return reader.builder.as_floats(x)
    if wanted == "b" and given != "b":
        if is_ids(x):
            return reader.builder.compared("not_equal", x, np.array(0))
        return reader.builder.compare("not_equal", x, 0.0)
    return reader.builder.cut_off(x) if given == "f" and not is_ids(x) else x


def _floor(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    return floor(reader, node, x)


def _clip(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    limits: list[float | None] = [None, None]
    for index, name in enumerate(("min", "max")):
        if len(inputs) > index + 1 and inputs[index + 1] is not None:
            limit = array_of(inputs[index + 1], node)
            if limit.size != 1:
                raise ModelLoadError(f"{node.where}: expected a number as limit")
            limits[index] = shortest(limit.reshape(-1)[0])
        elif name in node.attributes:
            limits[index] = shortest(node.attributes[name])
    low, high = (None if each is None or abs(each) > 3.4e38 else each for each in limits)
    if low is not None and high is not None:
        return reader.builder.function("clip", x, low, high)
    if low is not None:
        return (
            reader.builder.function("relu", x) if low == 0 else reader.builder.arithmetic("maximum", x, low)
        )
    return x if high is None else reader.builder.arithmetic("minimum", x, high)


def _pow(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    exponent = array_of(inputs[1], node)
    if exponent.size != 1:  # one for each feature: of numbers that are not negative
        logarithm = reader.builder.arithmetic(
            "multiply", reader.builder.function("log", x), Constant(exponent)
        )
        return reader.builder.function("exp", logarithm)
    return reader.builder.power(x, float(exponent.reshape(-1)[0]))


def _prelu(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    slope = operand(Constant(array_of(inputs[1], node)))
    if isinstance(slope, Constant) and slope.array.size != x.shape[-1]:
        raise ModelLoadError(f"{node.where}: expected one slope per feature, got {slope.shape}")
    return reader.builder.prelu(x, slope, -1)


def _shrink(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    """Softshrink and hardshrink: what is beyond a limit, moved towards it."""
    limit, bias = shortest(node.attributes.get("lambd", 0.5)), shortest(node.attributes.get("bias", 0.0))
    if limit != bias:
        raise ModelLoadError(
            f"{node.where} with a step in it (lambd {limit}, bias {bias}) is not part of an MLP"
        )
    return reader.builder.arithmetic("subtract", x, reader.builder.function("clip", x, -limit, limit))


READERS: dict[str, Reader] = {
    "Cast": _cast,
    "CastLike": _same,
    "Clip": _clip,
    "Dropout": _same,
    "Floor": _floor,
    "Identity": _same,
    "IsNaN": _is_nan,
    "Not": _not,
    "PRelu": _prelu,
    "Pow": _pow,
    "Shrink": _shrink,
}
