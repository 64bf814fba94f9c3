# SPDX-License-Identifier: Apache-2.0
"""Operators that compute value by value: arithmetic, and functions whose numbers are inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.onnx.functions import ARITHMETIC, shortest
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.values import Reader, Value, array_of, operand
from fused_mlp.models.spec import Combination

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader

_FLOATS = (1, 10, 11, 16)  # of TensorProto.DataType: float, float16, double, bfloat16


def arithmetic(builder: Builder, op: str, inputs: list[Value]) -> Value:
    total = operand(inputs[0])
    for each in inputs[1:]:
        other = operand(each)
        if isinstance(total, Rows) or isinstance(other, Rows):
            total = builder.arithmetic(cast(Combination, ARITHMETIC.get(op, "add")), total, other)
        else:  # constants in front: max(0, 1, x)
            raise ModelLoadError("constants before the rows are not read")
    if op == "Mean":
        total = builder.arithmetic("divide", total, float(len(inputs)))
    return cast(Rows, total)


def _same(_: RowsReader, __: Node, x: Rows, ___: list[Value]) -> Rows:
    return x


def _cast(_: RowsReader, node: Node, x: Rows, __: list[Value]) -> Rows:
    if node.attributes.get("to", 1) not in _FLOATS:
        raise ModelLoadError(f"{node.where} to a type that is not a float is not part of an MLP")
    return x


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
    if exponent.size != 1:
        raise ModelLoadError(f"{node.where}: expected one number as exponent")
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
    "Identity": _same,
    "PRelu": _prelu,
    "Pow": _pow,
    "Shrink": _shrink,
}
