# SPDX-License-Identifier: Apache-2.0
"""A quantised ONNX graph as the float graph that it stands for: weights are what their whole numbers mean, rows are
clipped to the range that they had, and nothing is rounded. What is not understood stays, and is refused by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.onnx.bounds import most_computed
from fused_mlp.models.weights.dtypes import Array

_MICROSOFT = "com.microsoft"
# Operators that move values and leave them as they are.
_MOVES = ("Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
# Operators with a grid for each operand and one for the result, and the float operator of each.
_OF_GRIDS = {"Add": 2, "Mul": 2, "Sigmoid": 1, "LeakyRelu": 1, "Softmax": 1}


@dataclass(frozen=True)
class Grid:
    """The numbers that a tensor of whole numbers stands for: (q - zero) * scale. Where the graph takes the scale from
    the range of the values, it is 1, here and wherever the graph multiplies by it."""

    scale: float
    zero: int
    low: float = -np.inf
    high: float = np.inf

    @classmethod
    def of(cls, scale: Array, zero: Array | None) -> Grid | None:
        """None: no grid of one scale for all values, or of floats of 8 bits."""
        zero = np.zeros(1, np.uint8) if zero is None else zero
        if scale.size != 1 or zero.size != 1 or zero.dtype.kind not in "iu":
            return None
        limits, at, step = np.iinfo(zero.dtype), int(zero.reshape(-1)[0]), float(scale.reshape(-1)[0])
        return cls(step, at, (limits.min - at) * step, (limits.max - at) * step)


def in_floats(model: Any) -> frozenset[str]:
    """Rewrites the graph of a ModelProto in place. Returns the names of the weights that were int8 and are multiplied
    by quantised rows: none where only the weights are quantised."""
    if not any("Quant" in node.op_type or "Integer" in node.op_type or "QLinear" in node.op_type
               or node.op_type == "QGemm" for node in model.graph.node):  # fmt: skip
        return frozenset()
    rewriting = _Rewriting(model)
    rewriting.run()
    return frozenset(rewriting.weights if rewriting.rounds_rows else ())


class _Rewriting:
    def __init__(self, model: Any) -> None:
        from onnx import helper, numpy_helper  # noqa: PLC0415 - an extra

        self._graph, self._helper, self._numpy = model.graph, helper, numpy_helper
        opsets = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
        self._clip_has_inputs = max(opsets, default=20) >= 11
        self._constants: dict[str, Array] = {
            each.name: numpy_helper.to_array(each) for each in self._graph.initializer
        }
        self._names = {name for node in self._graph.node for name in (*node.input, *node.output)} | {
            *self._constants
        }
        self._left = most_computed(self._constants.values())
        self._copies: Counter[str] = Counter()
        self._grids: dict[str, Grid] = {}
        self._nodes: list[Any] = []
        self.weights: set[str] = set()
        self.rounds_rows = False

    def run(self) -> None:
        readers: dict[str, Callable[[Any], bool]] = {
            "QuantizeLinear": self._quantize,
            "DequantizeLinear": self._dequantize,
            "DynamicQuantizeLinear": self._quantize_by_range,
            "MatMulInteger": self._integer_product,
            "MatMulIntegerToFloat": self._product_to_float,
            "DynamicQuantizeMatMul": self._product_by_range,
            "QLinearMatMul": self._product_of_grids,
            "QGemm": self._gemm_of_grids,
            "QLinearConcat": self._concat_of_grids,
            **{f"QLinear{op}": self._of_grids for op in _OF_GRIDS},
        }
        for node in self._graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._constants[node.output[0]] = self._numpy.to_array(node.attribute[0].t)
            if node.op_type in readers and readers[node.op_type](node):
                continue
            self._nodes.append(node)
            if node.op_type in _MOVES and node.input[0] in self._grids:
                self._grids.update(dict.fromkeys(node.output, self._grids[node.input[0]]))
        for output in self._graph.output:
            if output.name in self._grids:
                raise ModelLoadError(
                    f"output {output.name!r} is quantised: expected floats, add a DequantizeLinear"
                )
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)

    # Between floats and whole numbers

    def _quantize(self, node: Any) -> bool:
        scale, zero = self._constant(node, 1), self._constant(node, 2)
        if scale is None or (zero is None and (len(node.input) > 2 or len(node.attribute))):
            return False
        given = self._constant(node, 0)
        if given is not None:  # weights that are rounded where they are used
            zero = np.zeros(1, np.uint8) if zero is None else zero
            if zero.dtype.kind not in "iu":
                return False
            limits, axis = np.iinfo(zero.dtype), _attributes(node).get("axis", 1)
            steps = np.rint(given / _along(scale, axis, given)) + _along(zero, axis, given)
            self._constants[node.output[0]] = np.clip(steps, limits.min, limits.max).astype(zero.dtype)
            return True
        grid = Grid.of(scale, zero)
        if grid is None:
            return False
        self._clip(node, node.input[0], node.output[0], grid)
        return True

    def _dequantize(self, node: Any) -> bool:
        scale, zero = self._constant(node, 1), self._constant(node, 2)
        if scale is None or (zero is None and len(node.input) > 2 and node.input[2]):
            return False
        grid = self._grids.get(node.input[0])
        if grid is not None:
            if (own := Grid.of(scale, zero)) is None or own != grid:
                return False
            self._emit(node, "Identity", [node.input[0]], node.output[0])
            return True
        given = self._constant(node, 0)
        if given is None or given.dtype.kind not in "iu" or _attributes(node).get("block_size", 0):
            return False
        weight = _meant(given, scale, zero, _attributes(node).get("axis", 1))
        name = self._weight_name(node.input[0])
        self._add_constant(name, weight, is_weight=given.dtype.itemsize == 1 and given.ndim == 2)
        self._emit(node, "Identity", [name], node.output[0])
        self._constants[node.output[0]] = weight
        return True

    def _quantize_by_range(self, node: Any) -> bool:
        self._emit(node, "Identity", [node.input[0]], node.output[0])
        for name, value in zip(node.output[1:], (np.float32(1), np.uint8(0)), strict=False):
            self._add_constant(name, np.asarray(value))
        self._grids[node.output[0]] = Grid(1.0, 0)
        self.rounds_rows = True
        return True

    # Products

    def _integer_product(self, node: Any) -> bool:
        grid = self._grids.get(node.input[0])
        if grid is None:
            return False
        return self._product(node, node.input[0], (1, None, 3), times=1 / grid.scale)

    def _product_to_float(self, node: Any) -> bool:
        return node.input[0] in self._grids and self._product(node, node.input[0], (1, 3, 5), bias=6)

    def _product_by_range(self, node: Any) -> bool:
        self.rounds_rows = True
        return self._product(node, node.input[0], (1, 2, 3), bias=4)

    def _product_of_grids(self, node: Any) -> bool:
        result = self._grid(node, 6)
        if node.input[0] not in self._grids or result is None:
            return False
        return self._product(node, node.input[0], (3, 4, 5), result=result)

    def _product(
        self,
        node: Any,
        rows: str,
        weight: tuple[int, int | None, int],
        *,
        bias: int = 99,
        times: float = 1.0,
        result: Grid | None = None,
    ) -> bool:
        """`weight`: which inputs are its whole numbers, scales and zero points."""
        values, zero = self._constant(node, weight[0]), self._constant(node, weight[2])
        scale = np.ones(1, np.float32) if weight[1] is None else self._constant(node, weight[1])
        if values is None or scale is None or (zero is None and _given(node, weight[2])):
            return False
        name = self._weight_name(node.input[weight[0]])
        self._add_constant(name, _meant(values, scale, zero, -1) * np.float32(times), is_weight=True)
        made = node.output[0] if result is None and not _given(node, bias) else self._fresh(node.output[0])
        self._emit(node, "MatMul", [rows, name], made)
        if _given(node, bias):
            self._emit(node, "Add", [made, node.input[bias]], node.output[0])
        elif result is not None:
            self._clip(node, made, node.output[0], result)
        return True

    def _gemm_of_grids(self, node: Any) -> bool:
        grid, values, scale = self._grids.get(node.input[0]), self._constant(node, 3), self._constant(node, 4)
        zero, bias, attributes = self._constant(node, 5), self._constant(node, 6), _attributes(node)
        if grid is None or values is None or scale is None or (bias is None and _given(node, 6)):
            return False
        alpha, transposed = attributes.get("alpha", 1.0), attributes.get("transB", 0)
        name = self._weight_name(node.input[3])
        self._add_constant(name, _meant(values, scale, zero, 0 if transposed else 1), is_weight=True)
        inputs = [node.input[0], name]
        if bias is not None:
            inputs.append(self._fresh(node.input[6]))
            steps = alpha * grid.scale * _along(scale, -1, bias)
            self._add_constant(inputs[-1], (bias * steps).astype(np.float32))
        result = self._grid(node, 7) if _given(node, 7) else None
        if result is None and _given(node, 7):
            return False
        made = node.output[0] if result is None else self._fresh(node.output[0])
        self._emit(
            node, "Gemm", inputs, made, alpha=alpha, transA=attributes.get("transA", 0), transB=transposed
        )
        if result is not None:
            self._clip(node, made, node.output[0], result)
        return True

    # Functions of whole numbers

    def _of_grids(self, node: Any) -> bool:
        op = node.op_type.removeprefix("QLinear")
        count = _OF_GRIDS[op]
        operands = [self._operand(node, 3 * index) for index in range(count)]
        return self._function(node, op, operands, self._grid(node, 3 * count), **_attributes(node))

    def _concat_of_grids(self, node: Any) -> bool:
        operands = [self._operand(node, index) for index in range(2, len(node.input), 3)]
        return self._function(node, "Concat", operands, self._grid(node, 0), **_attributes(node))

    def _function(
        self, node: Any, op: str, operands: Sequence[str | None], grid: Grid | None, **attributes: Any
    ) -> bool:
        known = [each for each in operands if each is not None]
        if grid is None or len(known) < len(operands):
            return False
        attributes.pop("opset", None)  # of QLinearSoftmax
        made = self._fresh(node.output[0])
        self._emit(node, op, known, made, **attributes)
        self._clip(node, made, node.output[0], grid)
        return True

    def _operand(self, node: Any, at: int) -> str | None:
        """Rows on a grid, or a constant, at an input that scale and zero point follow."""
        name = node.input[at]
        if name in self._grids:
            return str(name)
        given, scale = self._constant(node, at), self._constant(node, at + 1)
        if given is None or scale is None:
            return None
        made = self._fresh(name)
        self._add_constant(made, _meant(given, scale, self._constant(node, at + 2), -1))
        return made

    # Tensors and nodes of the graph

    def _constant(self, node: Any, at: int) -> Array | None:
        return self._constants.get(node.input[at]) if _given(node, at) else None

    def _grid(self, node: Any, at: int) -> Grid | None:
        scale, zero = self._constant(node, at), self._constant(node, at + 1)
        return None if scale is None else Grid.of(scale, zero)

    def _clip(self, node: Any, source: str, target: str, grid: Grid) -> None:
        low, high = np.float32(grid.low), np.float32(grid.high)
        if self._clip_has_inputs:
            limits = [self._fresh(f"{target}_low"), self._fresh(f"{target}_high")]
            for name, limit in zip(limits, (low, high), strict=True):
                self._add_constant(name, np.asarray(limit))
            self._emit(node, "Clip", [source, *limits], target)
        else:
            self._emit(node, "Clip", [source], target, min=float(low), max=float(high))
        self._grids[target] = grid
        self.rounds_rows = True

    def _emit(self, node: Any, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        self._nodes.append(self._helper.make_node(op, list(inputs), [output], name=node.name, **attributes))

    def _add_constant(self, name: str, array: Array, *, is_weight: bool = False) -> None:
        self._left -= array.size
        if self._left < 0:
            raise ModelLoadError("its constants become too large for an MLP")
        self._constants[name] = array
        self._graph.initializer.append(self._numpy.from_array(np.ascontiguousarray(array), name))
        if is_weight:
            self.weights.add(name)

    def _weight_name(self, name: str) -> str:
        """Steps are called what their weights are: without what a quantiser has added."""
        return self._fresh(name.removesuffix("_quantized"))

    def _fresh(self, name: str) -> str:
        made = name
        while made in self._names:
            made = f"{name}_float{self._copies[name] or ''}"
            self._copies[name] += 1
        self._names.add(made)
        return made


def _given(node: Any, at: int) -> bool:
    return len(node.input) > at and bool(node.input[at])


def _meant(values: Array, scale: Array, zero: Array | None, axis: int) -> Array:
    """(values - zero) * scale, in the scales' dtype."""
    whole = values.astype(np.float64)
    if zero is not None:
        whole = whole - _along(zero, axis, values)
    return np.asarray((whole * _along(scale, axis, values)).astype(scale.dtype))


def _along(numbers: Array, axis: int, like: Array) -> Array:
    """One number, or one for each position on an axis, in a shape that broadcasts."""
    wide = numbers.astype(np.float64)
    if numbers.size == 1:
        return wide.reshape(())
    if numbers.size != like.shape[axis]:  # numpy would repeat the others
        raise ModelLoadError(
            f"{numbers.size} scales or zero points do not fit a weight of shape {like.shape}"
        )
    shape = [1] * like.ndim
    shape[axis] = -1
    return wide.reshape(shape)


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper  # noqa: PLC0415

    return {each.name: helper.get_attribute_value(each) for each in node.attribute}
