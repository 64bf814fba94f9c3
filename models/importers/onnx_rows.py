"""Follows the rows through an ONNX graph: each node is a constant, a view, or a call of the builder. What cannot be
read is an error only where an output needs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from fused_mlp.models.dtypes import Array
from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.building.builder import Builder, Operand
from fused_mlp.models.importers.building.nodes import Constant, Place
from fused_mlp.models.importers.building.rows import (
    Rows,
    expanded,
    inserted,
    permuted,
    removed,
    reshaped,
    taken,
)
from fused_mlp.models.importers.onnx_functions import (
    ARITHMETIC,
    COMPARISONS,
    FUNCTIONS,
    cast_name,
    fold,
    shortest,
)
from fused_mlp.models.importers.onnx_graph import Graph, Node
from fused_mlp.models.spec import Combination

# Stands for the number of rows in shapes that a graph computes with: a prime above every width.
MANY = 1048583


@dataclass(frozen=True)
class Unreadable:
    """A value that no step makes, and why: an error where an output needs it."""

    text: str


Value = Rows | Constant | Unreadable | None  # None: an optional input left out


class RowsReader:
    """Visits the nodes, which ONNX keeps in topological order, and remembers every value by name. `labels` are the
    names of the classes, where the graph has them."""

    def __init__(self, graph: Graph, builder: Builder) -> None:
        self._graph = graph
        self.builder = builder
        self.labels: tuple[str, ...] | None = None
        declared = graph.input_shape
        self.rows = declared[0] if declared and declared[0] is not None else MANY
        self.opset = next(
            (each.version for each in graph.model.opset_import if each.domain in ("", "ai.onnx")), 20
        )
        self._values: dict[str, Value] = {
            name: Constant(array, "" if "::" in name else name, array.dtype.name)
            for name, array in graph.constants.items()
        }
        self._values[graph.input_name] = builder.input

    def read(self) -> dict[str, Value]:
        """The graph's outputs."""
        for node in self._graph.nodes:
            made = self._visit(node)
            self._values.update(zip(node.outputs, made, strict=False))
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
                if any(isinstance(value, Rows) for value in inputs):
                    return _apply(self, node, inputs)
                return self._fold(node, cast(list[Constant | None], inputs))
        except ModelLoadError as error:
            return self._unreadable(node, str(error))
        except (
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            AttributeError,
        ) as error:  # shapes that do not fit
            return self._unreadable(node, f"{node.where} cannot be read: {first_line(error)}")

    def _unreadable(self, node: Node, text: str) -> Sequence[Value]:
        return [Unreadable(text)] * max(1, len(node.outputs))

    def _fold(self, node: Node, inputs: list[Constant | None]) -> Sequence[Value]:
        first = inputs[0] if inputs else None
        if first is not None and node.op == "Identity":
            return [first]
        if first is not None and node.op == "Transpose" and len(first.shape) == 2:
            return [transposed(first) if node.attributes.get("perm", [1, 0]) == [1, 0] else first]
        made = fold(node, [None if each is None else each.array for each in inputs], self.opset, self.rows)
        if made is None:
            return self._unreadable(node, f"{node.where} is not part of an MLP{_hint(node.op)}")
        return [Constant(array, "", array.dtype.name) for array in made]

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


def transposed(matrix: Constant) -> Constant:
    """Keeps its name, so that steps are called what the weights are."""
    return Constant(matrix.array.T, matrix.origin, matrix.dtype)


# -- operators on rows. Each: (reader, node, x, inputs) -> value or values; x is the first input, of rows


Reader = Callable[[RowsReader, Node, Rows, list[Value]], Value | Sequence[Value]]


def _apply(reader: RowsReader, node: Node, inputs: list[Value]) -> Sequence[Value]:
    first = inputs[0]
    builder, op = reader.builder, node.op
    made: Value | Sequence[Value]
    if op in ARITHMETIC or op in ("Sum", "Mean"):
        made = _arithmetic(builder, op, inputs)
    elif op in COMPARISONS:
        made = builder.compare(COMPARISONS[op], *map(_operand, inputs))
    elif op == "Where":
        made = builder.where(*map(_operand, inputs))
    elif op in ("MatMul", "Gemm"):
        made = _product(builder, node, inputs)
    elif op == "Concat":
        made = builder.concat([_needed(each) for each in inputs], node.attributes.get("axis", 1))
    elif isinstance(first, Rows) and op in FUNCTIONS:
        made = builder.apply(first, FUNCTIONS[op](node.attributes))
    elif isinstance(first, Rows) and op in _READERS:
        made = _READERS[op](reader, node, first, inputs)
    else:
        raise ModelLoadError(f"{node.where} is not part of an MLP{_hint(op)}")
    return made if isinstance(made, list) else [cast(Value, made)]


def _hint(op: str) -> str:
    if "quant" in op.lower() or op.startswith("QLinear") or op in ("MatMulInteger", "MatMulNBits", "ConvInteger"):
        return ": it is quantised; export the model in float32, quantised graphs are not read yet"
    if op in ("Loop", "If", "Scan"):
        return ": it decides or repeats while it runs"
    return ""


def _needed(value: Value) -> Rows | Constant:
    if not isinstance(value, (Rows, Constant)):
        raise ModelLoadError("an input is missing")
    return value


def _operand(value: Value) -> Operand:
    """Numbers as short as they were written: 1.702, not 1.7020000219."""
    needed = _needed(value)
    if isinstance(needed, Constant) and needed.array.size == 1 and needed.array.dtype.kind == "f":
        return shortest(needed.array.reshape(-1)[0])
    return needed


def _array(value: Value, node: Node) -> Array:
    if not isinstance(value, Constant):
        raise ModelLoadError(f"{node.where}: expected a constant where it has something computed")
    return value.array


def _ints(node: Node, inputs: list[Value], at: int, name: str) -> list[int] | None:
    """A list that is an attribute in old opsets and an input in new ones."""
    if len(inputs) > at and inputs[at] is not None:
        return [int(each) for each in _array(inputs[at], node).reshape(-1)]
    given = node.attributes.get(name)
    return None if given is None else [int(each) for each in given]


def _arithmetic(builder: Builder, op: str, inputs: list[Value]) -> Value:
    total = _operand(inputs[0])
    for each in inputs[1:]:
        other = _operand(each)
        if isinstance(total, Rows) or isinstance(other, Rows):
            total = builder.arithmetic(cast(Combination, ARITHMETIC.get(op, "add")), total, other)
        else:  # constants in front: max(0, 1, x)
            raise ModelLoadError("constants before the rows are not read")
    if op == "Mean":
        total = builder.arithmetic("divide", total, float(len(inputs)))
    return cast(Rows, total)


def _product(builder: Builder, node: Node, inputs: list[Value]) -> Value:
    left, right = (_needed(each) for each in inputs[:2])
    attributes = node.attributes
    if (
        node.op == "MatMul"
        and isinstance(left, Rows)
        and isinstance(right, Constant)
        and len(right.shape) == 2
    ):
        return builder.linear(left, transposed(right))
    if node.op == "MatMul":
        return builder.matmul(left, right)
    if attributes.get("transA", 0):
        raise ModelLoadError(f"{node.where} transposes the rows (transA), which is not part of an MLP")
    if not isinstance(left, Rows) or not isinstance(right, Constant):
        return builder.matmul(left, right)
    weight = right if attributes.get("transB", 0) else transposed(right)
    bias = _needed(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else None
    if isinstance(bias, Rows):
        return builder.arithmetic(
            "add", builder.linear(left, _times(weight, attributes.get("alpha", 1.0))), bias
        )
    if isinstance(bias, Constant):
        if any(size != 1 for size in bias.shape[:-1]):
            raise ModelLoadError(
                f"{node.where}: expected a bias with one value per feature, got {bias.shape}"
            )
        bias = _times(Constant(bias.array.reshape(-1), bias.origin, bias.dtype), attributes.get("beta", 1.0))
    return builder.linear(left, _times(weight, attributes.get("alpha", 1.0)), bias)


def _times(tensor: Constant, factor: float) -> Constant:
    return tensor if factor == 1.0 else Constant(tensor.exact * factor, "", tensor.dtype)


def _same(_: RowsReader, __: Node, x: Rows, ___: list[Value]) -> Rows:
    return x


def _cast(_: RowsReader, node: Node, x: Rows, __: list[Value]) -> Rows:
    if cast_name(node.attributes.get("to", 1)) is None:
        raise ModelLoadError(f"{node.where} to a type that is not a float is not part of an MLP")
    return x


def _clip(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    limits: list[float | None] = [None, None]
    for index, name in enumerate(("min", "max")):
        if len(inputs) > index + 1 and inputs[index + 1] is not None:
            limit = _array(inputs[index + 1], node)
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
    exponent = _array(inputs[1], node)
    if exponent.size != 1:
        raise ModelLoadError(f"{node.where}: expected one number as exponent")
    return reader.builder.power(x, float(exponent.reshape(-1)[0]))


def _prelu(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    slope = _operand(Constant(_array(inputs[1], node)))
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


# -- norms


def _batch_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    if node.attributes.get("training_mode", 0):
        raise ModelLoadError(f"{node.where} is in training mode: export the model in eval mode")
    weight, bias, mean, variance = (Constant(_array(each, node)) for each in inputs[1:5])
    eps = shortest(node.attributes.get("epsilon", 1e-5))
    return reader.builder.batch_norm(x, mean, variance, weight=weight, bias=bias, eps=eps)


def _layer_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    start = x.axis(node.attributes.get("axis", -1))
    axes = range(start, x.index.ndim)
    weight, bias = (_vector(node, inputs, at, x.shape[start:]) for at in (1, 2))
    eps = shortest(node.attributes.get("epsilon", 1e-5))
    kind: Any = "layer" if node.op == "LayerNormalization" else "rms"
    return reader.builder.norm(kind, x, axes, eps=eps, weight=weight, bias=bias)


def _vector(node: Node, inputs: list[Value], at: int, shape: Sequence[int]) -> Constant | None:
    if len(inputs) <= at or inputs[at] is None:
        return None
    given = inputs[at]
    array = _array(given, node)
    assert isinstance(given, Constant)
    same = array.shape == tuple(shape)
    return given if same else Constant(np.broadcast_to(array, tuple(shape)), "", given.dtype)


def _instance_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    """torch writes a group norm as one of these between two reshapes."""
    ones = (1,) * (x.index.ndim - 2)
    weight, bias = (Constant(_array(each, node).reshape(1, -1, *ones)) for each in inputs[1:3])
    eps = shortest(node.attributes.get("epsilon", 1e-5))
    normal = reader.builder.norm("layer", x, range(2, x.index.ndim), eps=eps)
    return reader.builder.arithmetic("add", reader.builder.arithmetic("multiply", normal, weight), bias)


def _group_norm(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    groups, features = int(node.attributes["num_groups"]), x.shape[1]
    if x.rows_at != 0 or features % groups:
        raise ModelLoadError(f"{node.where}: {groups} groups of {features} features")
    eps = shortest(node.attributes.get("epsilon", 1e-5))
    parts = reshaped(x, (x.shape[0], groups, features // groups, *x.shape[2:]), 0)
    normal = reader.builder.norm("layer", parts, range(2, parts.index.ndim), eps=eps)
    ones = (1,) * (x.index.ndim - 2)
    made = reshaped(normal, x.shape, 0)
    for op, given in (("multiply", inputs[1]), ("add", inputs[2])):
        vector = _array(given, node)
        vector = np.repeat(vector, features // groups) if vector.size == groups != features else vector
        made = reader.builder.arithmetic(cast(Combination, op), made, Constant(vector.reshape(1, -1, *ones)))
    return made


_TINY = 1e-30  # so that a row of zeros stays one


def _lp_norm(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    return _normal(reader, x, node.attributes.get("axis", -1), int(node.attributes.get("p", 2)))


def _normal(reader: RowsReader, x: Rows, axis: int, power: int) -> Rows:
    if power == 2:
        return reader.builder.norm("l2", x, (axis,), eps=_TINY)
    total = reader.builder.reduce("sum", reader.builder.function("abs", x), (axis,), keep=True)
    return reader.builder.arithmetic("divide", x, total)


# -- over features


def _softmax(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    # Up to opset 12 it goes over all axes from its own on: the same for rows.
    axis = node.attributes.get("axis", -1 if reader.opset >= 13 else 1)
    return reader.builder.softmax(x, axis, log=node.op == "LogSoftmax")


def _reduce(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    axes = _ints(node, inputs, 1, "axes")
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return x
    axes = axes or list(range(x.index.ndim))
    builder, keep = reader.builder, bool(node.attributes.get("keepdims", 1))
    match node.op:
        case "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd":
            return builder.reduce(cast(Any, node.op.removeprefix("Reduce").lower()), x, axes, keep=keep)
        case "ReduceL1":
            return builder.reduce("sum", builder.function("abs", x), axes, keep=keep)
        case "ReduceLogSumExp":
            return builder.log_sum_exp(x, axes, keep=keep)
    squares = builder.reduce("sum", builder.function("square", x), axes, keep=keep)
    return squares if node.op == "ReduceSumSquare" else builder.function("sqrt", squares)


# -- views


def _reshape(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    sizes = _ints(node, inputs, 1, "shape")
    if sizes is None:
        raise ModelLoadError(f"{node.where}: expected a constant shape")
    if not node.attributes.get("allowzero", 0):
        sizes = [
            own if size == 0 else size for size, own in zip(sizes, [*reader.sizes(x), *sizes], strict=False)
        ]
    return reshaped(x, *reader.split_rows(x, sizes))


def _flatten(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    axis = node.attributes.get("axis", 1)
    axis = axis + x.index.ndim if axis < 0 else axis
    sizes = reader.sizes(x)
    return reshaped(x, *reader.split_rows(x, [math.prod(sizes[:axis]), math.prod(sizes[axis:])]))


def _transpose(_: RowsReader, node: Node, x: Rows, __: list[Value]) -> Rows:
    return permuted(x, node.attributes.get("perm", list(reversed(range(x.index.ndim)))))


def _squeeze(_: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    axes = _ints(node, inputs, 1, "axes")
    return removed(x, [axis for axis in range(x.index.ndim) if axis != x.rows_at] if axes is None else axes)


def _unsqueeze(_: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    axes = _ints(node, inputs, 1, "axes") or []
    ndim = x.index.ndim + len(axes)
    for axis in sorted(axis + ndim if axis < 0 else axis for axis in axes):
        x = inserted(x, axis)
    return x


def _expand(reader: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    sizes = np.broadcast_shapes(tuple(reader.sizes(x)), tuple(_ints(node, inputs, 1, "shape") or ()))
    rows_at = x.rows_at + len(sizes) - x.index.ndim
    shape = [size // reader.rows if axis == rows_at else size for axis, size in enumerate(sizes)]
    return expanded(x, shape, rows_at)


def _slice(_: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    starts, ends = (_ints(node, inputs, at, name) or [] for at, name in ((1, "starts"), (2, "ends")))
    axes = _ints(node, inputs, 3, "axes") or list(range(len(starts)))
    steps = _ints(node, inputs, 4, "steps") or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        everything = start == 0 and step == 1 and end >= 1 << 31
        if x.axis(axis) == x.rows_at and everything:
            continue
        stop = None if step < 0 and end < -(1 << 30) else end
        x = taken(x, axis, slice(start, stop, step))
    return x


def _gather(_: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> Rows:
    indices = _array(inputs[1], node)
    axis = node.attributes.get("axis", 0)
    if indices.ndim == 0:
        return taken(x, axis, int(indices))
    if indices.ndim != 1:
        raise ModelLoadError(f"{node.where}: expected a list of positions")
    return taken(x, axis, indices.astype(np.intp))


def _split(_: RowsReader, node: Node, x: Rows, inputs: list[Value]) -> list[Value]:
    axis = node.attributes.get("axis", 0)
    width, count = x.shape[x.axis(axis)], len(node.outputs)
    even = -(-width // count)
    sizes = _ints(node, inputs, 1, "split") or [min(even, width - even * part) for part in range(count)]
    ends = np.cumsum(sizes).tolist()
    if ends[-1] != width:
        raise ModelLoadError(f"{node.where}: parts of {sizes} for {width} features")
    return [taken(x, axis, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def _shape_of(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Constant:
    sizes = reader.sizes(x)[node.attributes.get("start", 0) : node.attributes.get("end")]
    return Constant(np.array(sizes, np.int64))


def _size_of(reader: RowsReader, _: Node, x: Rows, __: list[Value]) -> Constant:
    return Constant(np.array(math.prod(reader.sizes(x)), np.int64))


# -- ai.onnx.ml, which scikit-learn's converter writes


def _scaler(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    offset, scale = (
        np.array(node.attributes.get(name, [default]), np.float32)
        for name, default in (("offset", 0), ("scale", 1))
    )
    centred = reader.builder.arithmetic("subtract", x, Constant(offset, "", "float32"))
    return reader.builder.arithmetic("multiply", centred, Constant(scale, "", "float32"))


def _normalizer(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    kind = node.attributes.get("norm", "MAX")
    if kind in ("L1", "L2"):
        return _normal(reader, x, -1, int(kind[1]))
    largest = reader.builder.reduce("max", x, (-1,), keep=True)
    return reader.builder.arithmetic("divide", x, largest)


def _linear_model(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> list[Value]:
    coefficients = np.array(node.attributes["coefficients"], np.float32)
    weight = Constant(coefficients.reshape(-1, x.shape[-1]), "", "float32")
    given = node.attributes.get("intercepts")
    bias = None if given is None else Constant(np.array(given, np.float32), "", "float32")
    scores = reader.builder.linear(x, weight, bias)
    match node.attributes.get("post_transform", "NONE"):
        case "SOFTMAX":
            scores = reader.builder.softmax(scores, -1)
        case "LOGISTIC":
            scores = reader.builder.function("sigmoid", scores)
        case "NONE":
            pass
        case other:
            raise ModelLoadError(f"{node.where} with post_transform {other} is not part of an MLP")
    if node.op == "LinearRegressor":
        return [scores]
    if weight.shape[0] == 1:
        raise ModelLoadError(f"{node.where} with one row of coefficients for two classes is not read")
    _keep_labels(reader, node)
    return [Unreadable(f"{node.where} answers class labels, not numbers"), scores]


def _zip_map(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    _keep_labels(reader, node)
    return x


def _keep_labels(reader: RowsReader, node: Node) -> None:
    names = next(
        (
            node.attributes[key]
            for key in node.attributes
            if key.startswith("classlabels") and node.attributes[key]
        ),
        None,
    )
    if names is not None:
        reader.labels = tuple(str(name) for name in names)


_READERS: dict[str, Reader] = {
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "CastLike": _same,
    "Clip": _clip,
    "Dropout": _same,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GroupNormalization": _group_norm,
    "Identity": _same,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LinearClassifier": _linear_model,
    "LinearRegressor": _linear_model,
    "LogSoftmax": _softmax,
    "LpNormalization": _lp_norm,
    "Normalizer": _normalizer,
    "PRelu": _prelu,
    "Pow": _pow,
    "RMSNormalization": _layer_norm,
    "Reshape": _reshape,
    "Scaler": _scaler,
    "Shape": _shape_of,
    "Shrink": _shrink,
    "SimplifiedLayerNormalization": _layer_norm,
    "Size": _size_of,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "ZipMap": _zip_map,
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
         "ReduceLogSumExp"),
        _reduce,
    ),
}  # fmt: skip
