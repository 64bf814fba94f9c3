"""Follows the rows through an ONNX graph. Every node either makes a step of an MLP (linear, gated, affine,
softmax), is elementwise arithmetic on a step's output, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fused_mlp.models.dtypes import Array
from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.activation_match import POINTS
from fused_mlp.models.importers.onnx_functions import BINARY, UNARY, clip, fold_constants
from fused_mlp.models.importers.onnx_graph import Graph, Node

Parameters = tuple[Array, Array | None]  # weight (out, in), bias (out,)


@dataclass(frozen=True, eq=False)
class Step:
    """What made some rows: the graph's input, or a step of the model applied to the rows `source`."""

    where: str
    kind: Literal["input", "linear", "gated", "affine", "softmax", "log_softmax"]
    source: Rows | None = None
    linear: Parameters | None = None
    gate: Parameters | None = None
    gate_function: Array | None = None  # values at POINTS
    affine: tuple[Array, Array] | None = None  # scale and shift
    flattened: bool = False  # the input only


@dataclass(frozen=True, eq=False)
class Rows:
    """A step's output after elementwise arithmetic; `function` holds the values of that arithmetic at POINTS.
    (Values, not code: shared parts are computed once, however often a graph uses them.)"""

    step: Step
    function: Array = field(default_factory=lambda: POINTS)
    where: str = ""  # the last node of the arithmetic

    @property
    def untouched(self) -> bool:
        return self.function is POINTS


class Unknown:
    """Computed from shapes, or by an operator that is not read: an error only where an MLP needs it."""


Value = Array | Rows | Unknown | None  # None: an optional input left out

_FLOAT_TYPES = (1, 10, 11, 16)  # of TensorProto.DataType: float, float16, double, bfloat16


class RowsReader:
    """Visits the nodes, which ONNX keeps in topological order, and remembers every value by name."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._values: dict[str, Value] = {**graph.constants}
        self._values[graph.input_name] = Rows(Step("the input", "input"))

    def read(self) -> Rows:
        """The rows that leave the graph."""
        for node in self._graph.nodes:
            try:
                results = self._visit(node)
            except (ValueError, TypeError, IndexError) as error:  # shapes that do not fit, mostly
                raise ModelLoadError(f"{node.where} cannot be read: {first_line(error)}") from error
            # Further outputs, such as the mask of a Dropout, are of no use to an MLP.
            self._values.update(zip(node.outputs, results, strict=False))
        output = self._values.get(self._graph.output_name)
        if not isinstance(output, Rows):
            raise ModelLoadError(f"output {self._graph.output_name!r} does not depend on the input")
        return output

    def _visit(self, node: Node) -> Sequence[Value]:
        inputs = [self._value(node, name) for name in node.inputs]
        if any(isinstance(value, Rows) for value in inputs):
            return _apply(node, inputs)
        constants = [value for value in inputs if not isinstance(value, Rows | Unknown)]
        folded = fold_constants(node, constants) if len(constants) == len(inputs) else None
        return [Unknown() if folded is None else folded]

    def _value(self, node: Node, name: str) -> Value:
        if not name:
            return None
        if name not in self._values:
            raise ModelLoadError(f"{node.where} uses {name!r}, which no node before it makes")
        return self._values[name]


def _apply(node: Node, inputs: list[Value]) -> Sequence[Value]:
    """What a node makes of rows."""
    first = inputs[0]
    if node.op == "Shape":
        return [Unknown()]
    if isinstance(first, Rows):
        if node.op in _READERS:
            made = _READERS[node.op](node, first, inputs)
            return made if isinstance(made, list) else [made]
        if node.op in UNARY:
            return [Rows(first.step, UNARY[node.op](first.function, node.attributes), node.where)]
    if node.op in BINARY and len(inputs) == 2:
        return [_binary(node, inputs[0], inputs[1])]
    if node.op == "Where" and len(inputs) == 3:
        return [_where(node, inputs)]
    raise ModelLoadError(f"{node.where} is not part of an MLP")


def _same(_: Node, rows: Rows, __: list[Value]) -> Rows:
    return rows


def _cast(node: Node, rows: Rows, _: list[Value]) -> Rows:
    if node.attributes.get("to") not in _FLOAT_TYPES:
        raise ModelLoadError(f"{node.where} to a type that is not a float is not part of an MLP")
    return rows


def _linear(node: Node, rows: Rows, inputs: list[Value]) -> Rows:
    weight = inputs[1]
    if not isinstance(weight, np.ndarray) or weight.ndim != 2:
        raise ModelLoadError(f"{node.where}: expected a constant matrix as its second input")
    if node.op == "MatMul":
        return Rows(Step(node.where, "linear", rows, (weight.T, None)))
    if node.attributes.get("transA", 0):
        raise ModelLoadError(f"{node.where} transposes the rows (transA), which is not part of an MLP")
    weight = weight if node.attributes.get("transB", 0) else weight.T
    weight = _times(weight, node.attributes.get("alpha", 1.0))
    bias = None
    if len(inputs) > 2 and inputs[2] is not None:
        vector = _vector(node, inputs[2], weight.shape[0])
        bias = _times(np.broadcast_to(vector, weight.shape[:1]), node.attributes.get("beta", 1.0))
    return Rows(Step(node.where, "linear", rows, (weight, bias)))


def _times(tensor: Array, factor: float) -> Array:
    return tensor if factor == 1.0 else (tensor.astype(np.float64) * factor).astype(tensor.dtype)


def _batch_norm(node: Node, rows: Rows, inputs: list[Value]) -> Rows:
    if node.attributes.get("training_mode", 0):
        raise ModelLoadError(f"{node.where} is in training mode: export the model in eval mode")
    if len(inputs) != 5 or not all(isinstance(value, np.ndarray) for value in inputs[1:]):
        raise ModelLoadError(f"{node.where}: expected four constant vectors")
    weight, bias, mean, variance = (
        value.astype(np.float64) for value in inputs[1:] if isinstance(value, np.ndarray)
    )
    scale = weight / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    return Rows(Step(node.where, "affine", rows, affine=(scale, bias - mean * scale)))


def _softmax(node: Node, rows: Rows, _: list[Value]) -> Rows:
    # The default is 1 or -1, depending on the opset: the same for rows.
    if node.attributes.get("axis", -1) not in (-1, 1):
        raise ModelLoadError(f"{node.where} over axis {node.attributes['axis']}: expected the last one")
    return Rows(Step(node.where, "softmax" if node.op == "Softmax" else "log_softmax", rows))


def _reshape(node: Node, rows: Rows, inputs: list[Value]) -> Rows:
    """Flattening: of images at the front, or of what is flat already."""
    flat = node.op == "Flatten" and node.attributes.get("axis", 1) == 1
    target = inputs[1] if node.op == "Reshape" and len(inputs) > 1 else None
    at_front = rows.step.kind == "input"
    if isinstance(target, np.ndarray):
        sizes = target.tolist()
        kept = rows.step.linear[0].shape[0] if rows.step.linear else -1
        flat = len(sizes) == 2 and (at_front or sizes[1] in (-1, kept))
    elif isinstance(target, Unknown):
        flat = at_front
    if not flat:
        raise ModelLoadError(f"{node.where} is not part of an MLP: expected it to flatten all but the rows")
    return replace(rows, step=replace(rows.step, flattened=True)) if at_front else rows


def _split(node: Node, rows: Rows, inputs: list[Value]) -> list[Rows]:
    """One matrix that holds gate and up: each half becomes a linear layer of the same rows."""
    linear = rows.step.linear
    halves = len(node.outputs) == 2
    sizes = (
        inputs[1].tolist()
        if len(inputs) > 1 and isinstance(inputs[1], np.ndarray)
        else node.attributes.get("split")
    )
    if rows.step.kind != "linear" or linear is None or not rows.untouched or not halves:
        raise ModelLoadError(f"{node.where} is not part of an MLP")
    weight, bias = linear
    half = weight.shape[0] // 2
    if (
        weight.shape[0] % 2
        or (sizes and list(sizes) != [half, half])
        or node.attributes.get("axis", 0) not in (-1, 1)
    ):
        raise ModelLoadError(f"{node.where}: expected two equal halves of the last axis")
    return [
        Rows(replace(rows.step, linear=(weight[part], None if bias is None else bias[part])))
        for part in (slice(None, half), slice(half, None))
    ]


def _clip(node: Node, rows: Rows, inputs: list[Value]) -> Rows:
    limits: list[Array | float | None] = [node.attributes.get("min"), node.attributes.get("max")]
    for index, value in enumerate(inputs[1:3]):
        if isinstance(value, np.ndarray) and value.size == 1:
            limits[index] = value.reshape(()).astype(np.float64)
        elif value is not None:
            raise ModelLoadError(f"{node.where}: expected constant limits")
    return Rows(rows.step, clip(rows.function, *limits), node.where)


def _binary(node: Node, left: Value, right: Value) -> Rows:
    """Arithmetic on one step's output, a gate, or a vector that scales or shifts the features."""
    if isinstance(left, Rows) and isinstance(right, Rows):
        if left.step is right.step:
            return Rows(left.step, BINARY[node.op](left.function, right.function), node.where)
        if node.op == "Mul":
            return _gated(node, left, right)
        raise ModelLoadError(f"{node.where} of two branches is not part of an MLP")
    rows, other = (left, right) if isinstance(left, Rows) else (right, left)
    if not isinstance(rows, Rows) or not isinstance(other, np.ndarray):
        raise ModelLoadError(f"{node.where}: expected a constant beside the rows")
    if other.size == 1:
        scalar = other.reshape(()).astype(np.float64)
        operands = (rows.function, scalar) if rows is left else (scalar, rows.function)
        return Rows(rows.step, BINARY[node.op](*operands), node.where)
    return _affine(node, rows, _vector(node, other), rows_first=rows is left)


def _where(node: Node, inputs: list[Value]) -> Rows:
    steps = {value.step for value in inputs if isinstance(value, Rows)}
    parts = [
        value.function if isinstance(value, Rows) else value.reshape(()).astype(np.float64)
        for value in inputs
        if isinstance(value, Rows) or (isinstance(value, np.ndarray) and value.size == 1)
    ]
    if len(steps) != 1 or len(parts) != 3:
        raise ModelLoadError(
            f"{node.where} is not part of an MLP: expected a choice within one layer's output"
        )
    condition, chosen, otherwise = parts
    return Rows(steps.pop(), np.where(condition != 0, chosen, otherwise), node.where)


def _gated(node: Node, left: Rows, right: Rows) -> Rows:
    gate, up = (left, right) if right.untouched else (right, left)
    a, b = gate.step, up.step
    if not up.untouched or a.linear is None or b.linear is None or a.source is not b.source:
        raise ModelLoadError(
            f"{node.where} of two branches is not part of an MLP: expected act(linear(x)) * linear(x), a gate"
        )
    if "gated" in (a.kind, b.kind):
        raise ModelLoadError(f"{node.where} multiplies a gated layer with another branch")
    return Rows(
        Step(node.where, "gated", b.source, linear=b.linear, gate=a.linear, gate_function=gate.function)
    )


def _affine(node: Node, rows: Rows, vector: Array, *, rows_first: bool) -> Rows:
    step, one, zero = rows.step, np.ones(()), np.zeros(())
    if node.op == "Add" and step.kind == "linear" and step.linear is not None and rows.untouched:
        weight, bias = step.linear  # MatMul and Add: a linear layer with a bias
        return Rows(replace(step, linear=(weight, vector if bias is None else bias + vector)))
    if node.op == "Add":
        affine = one, vector
    elif node.op == "Sub":
        affine = (one, -vector) if rows_first else (-one, vector)
    elif node.op == "Mul":
        affine = vector, zero
    elif node.op == "Div" and rows_first:
        affine = 1 / vector.astype(np.float64), zero
    else:
        raise ModelLoadError(f"{node.where} with a vector is not part of an MLP")
    return Rows(Step(node.where, "affine", rows, affine=affine))


def _vector(node: Node, value: Value, width: int | None = None) -> Array:
    """A constant of shape (n,), (1, n) or ()."""
    if not isinstance(value, np.ndarray) or any(size != 1 for size in value.shape[:-1]):
        raise ModelLoadError(f"{node.where}: expected a constant vector, one value per feature")
    vector = value.reshape(-1)
    if width is not None and vector.size not in (1, width):
        raise ModelLoadError(f"{node.where}: expected {width} values, got {vector.size}")
    return vector


_READERS: dict[str, Callable[[Node, Rows, list[Value]], Rows | list[Rows]]] = {
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Dropout": _same,
    "Flatten": _reshape,
    "Gemm": _linear,
    "Identity": _same,
    "LogSoftmax": _softmax,
    "MatMul": _linear,
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Split": _split,
}
