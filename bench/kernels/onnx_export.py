# SPDX-License-Identifier: Apache-2.0
"""A program as ONNX with a dynamic number of rows, in the operators that PyTorch's exporter uses: what other engines
run. Owns the operator of every step and function."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, load_from_string, numpy_helper

from fused_mlp.models import Mlp
from fused_mlp.models.program.formula import Formula
from fused_mlp.models.program.spec import INPUT, Step
from fused_mlp.models.program.steps import Dot, Slice
from fused_mlp.models.weights.quantization import to_int8

# Operators of functions without parameters that need no more than one node.
_NODES = {
    "relu": "Relu", "gelu": "Gelu", "tanh": "Tanh", "sigmoid": "Sigmoid", "hardswish": "HardSwish", "mish": "Mish",
    "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "erf": "Erf",
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "maximum": "Max", "minimum": "Min",
}  # fmt: skip


def onnx_bytes(mlp: Mlp) -> bytes:
    return _Export(mlp).model().SerializeToString()


def with_int8_weights(model: bytes) -> bytes:
    """The same with each matrix in int8, one scale per output, and dequantized by an operator."""
    loaded = load_from_string(model)
    graph = loaded.graph
    matrices = {node.input[1] for node in graph.node if node.op_type == "Gemm"}
    constants, nodes = [], []
    for constant in graph.initializer:
        if constant.name not in matrices:
            constants.append(constant)
            continue
        matrix = to_int8(numpy_helper.to_array(constant))
        names = [f"{constant.name}/int8", f"{constant.name}/scales"]
        constants.append(numpy_helper.from_array(matrix.values, names[0]))
        constants.append(numpy_helper.from_array(matrix.scales, names[1]))
        nodes.append(helper.make_node("DequantizeLinear", names, [constant.name], axis=0))
    nodes += graph.node
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(constants)
    graph.node.extend(nodes)
    return loaded.SerializeToString()


class _Export:
    def __init__(self, mlp: Mlp) -> None:
        self._mlp = mlp
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        for step in mlp.spec.steps:
            self._step(step)

    def model(self) -> Any:
        spec = self._mlp.spec
        for output in spec.outputs:
            self._add("Identity", [output.value], result=f"{output.name}:0")
        graph = helper.make_graph(
            self._nodes,
            "mlp",
            self._inputs(),
            [
                helper.make_tensor_value_info(f"{output.name}:0", TensorProto.FLOAT, ["rows", width])
                for output, width in zip(spec.outputs, spec.output_widths, strict=True)
            ],
            list(self._constants.values()),
        )
        # Opset 20 is the first with Gelu; the IR version is the one that came with it.
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)

    def _inputs(self) -> list[Any]:
        spec = self._mlp.spec
        if spec.inputs is None:
            return [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["rows", spec.in_features])]
        return [
            helper.make_tensor_value_info(
                each.name,
                TensorProto.INT64 if each.kind == "id" else TensorProto.FLOAT,
                ["rows", *each.shape],
            )
            for each in spec.inputs
        ]

    def _input_at(self, step: Slice) -> str:
        """The input that a slice of a record is, as a whole."""
        return next(
            part.input.name
            for part in self._mlp.spec.record
            if (part.start, part.stop) == (step.start, step.stop)
        )

    def _dot(self, step: Dot) -> None:
        """All products of the vectors, and those below the diagonal of them."""
        shape = self._array(f"groups {step.groups}", np.array([0, step.groups, -1]), np.int64)
        vectors = self._add("Reshape", [step.input, shape])
        products = self._add("MatMul", [vectors, self._add("Transpose", [vectors], perm=[0, 2, 1])])
        flat = self._add("Reshape", [products, self._array("flat", np.array([0, -1]), np.int64)])
        first, second = np.tril_indices(step.groups, 0 if step.itself else -1)
        below = self._array(f"below {step.groups}", first * step.groups + second, np.int64)
        self._add("Gather", [flat, below], step.name, axis=1)

    def _step(self, step: Step) -> None:
        sources, name = list(step.sources), step.name
        width = self._mlp.spec.widths_by_name[name]
        match step.op:
            case "linear":
                self._linear(step, "", name)
            case "gated":
                gate = self._function(self._linear(step, "gate_", f"{name}/gate"), step.formula, f"{name}/f")
                self._add("Mul", [gate, self._linear(step, "", f"{name}/up")], name)
            case "elementwise":
                self._function(step.input, step.formula, name)
            case "norm" if step.kind == "layer":
                scale = self._tensor(step, "weight") or self._array(f"{name}/one", np.ones(width))
                inputs = [step.input, scale, self._tensor(step, "bias") or ""]
                self._add("LayerNormalization", inputs, name, axis=-1, epsilon=step.eps)
            case "norm":
                if step.kind == "rms":
                    square = self._add("Mul", [step.input, step.input])
                    mean = self._add("ReduceMean", [square, self._array("last", np.array([-1]), np.int64)])
                    length = self._add("Sqrt", [self._add("Add", [mean, self._number(step.eps)])])
                else:
                    norm = self._add("ReduceL2", [step.input, self._array("last", np.array([-1]), np.int64)])
                    length = self._add("Max", [norm, self._number(step.eps)])
                self._scaled(step, self._add("Div", [step.input, length]), name)
            case "affine":
                # As an exporter writes a batch norm: its statistics are part of scale and shift here.
                scale = self._tensor(step, "weight") or self._array(f"{name}/one", np.ones(width))
                shift = self._tensor(step, "bias") or self._array(f"{name}/zero", np.zeros(width))
                mean = self._array(f"{name}/mean", np.zeros(width))
                variance = self._array(f"{name}/variance", np.ones(width))
                inputs = [step.input, scale, shift, mean, variance]
                self._add("BatchNormalization", inputs, name, epsilon=0.0)
            case "softmax":
                self._add("Softmax", sources, name, axis=-1)
            case "log_softmax":
                self._add("LogSoftmax", sources, name, axis=-1)
            case "concat":
                self._add("Concat", sources, name, axis=1)
            case "embedding":
                self._add("Gather", [self._tensor(step, "weight"), step.input], name)
            case "bag":
                rows = self._add("Gather", [self._tensor(step, "weight"), step.input])
                axis = self._array("one", np.array([1]), np.int64)
                self._add("ReduceSum", [rows, axis], name, keepdims=0)
            case "dot":
                self._dot(step)
            case "slice" if self._mlp.spec.inputs is not None and step.input == INPUT:
                self._add("Identity", [self._input_at(step)], name)
            case "slice":
                at = [self._array(f"int {n}", np.array([n]), np.int64) for n in (step.start, step.stop, 1)]
                self._add("Slice", [step.input, *at], name)
            case _:
                self._add(_NODES[step.op], sources, name)

    def _linear(self, step: Step, half: str, result: str) -> str:
        tensors = [self._tensor(step, f"{half}weight"), self._tensor(step, f"{half}bias")]
        return self._add("Gemm", [step.sources[0], *(each for each in tensors if each)], result, transB=1)

    def _scaled(self, step: Step, value: str, result: str) -> None:
        for op, tensor in (("Mul", self._tensor(step, "weight")), ("Add", self._tensor(step, "bias"))):
            if tensor:
                value = self._add(op, [value, tensor])
        self._add("Identity", [value], result)

    def _function(self, source: str, formula: Formula, result: str) -> str:
        registers = [source]
        for index, each in enumerate(formula.instructions):
            inputs = [
                registers[at] if at >= 0 else self._number(formula.constants[-1 - at]) for at in each.operands
            ]
            last = index == len(formula.instructions) - 1
            registers.append(self._call(each.op, inputs, each.numbers, result if last else None))
        return registers[-1] if formula.instructions else self._add("Identity", [source], result)

    def _call(self, op: str, inputs: list[str], numbers: tuple[float, ...], result: str | None) -> str:
        match op:
            case "leaky_relu":
                return self._add("LeakyRelu", inputs, result, alpha=numbers[0])
            case "elu":
                return self._add("Elu", inputs, result, alpha=numbers[0])
            case "gelu_tanh":
                return self._add("Gelu", inputs, result, approximate="tanh")
            case "silu":
                return self._add("Mul", [*inputs, self._add("Sigmoid", inputs)], result)
            case "softplus":
                scaled = self._add("Softplus", [self._add("Mul", [*inputs, self._number(numbers[0])])])
                return self._add("Div", [scaled, self._number(numbers[0])], result)
            case "log1p":  # ONNX has neither: as exporters write them
                return self._add("Log", [self._add("Add", [*inputs, self._number(1.0)])], result)
            case "expm1":
                return self._add("Sub", [self._add("Exp", inputs), self._number(1.0)], result)
            case "clip":
                return self._add("Clip", [*inputs, *map(self._number, numbers)], result)
        return self._add(_NODES[op], inputs, result)

    def _add(self, op: str, inputs: list[str], result: str | None = None, **attributes: Any) -> str:
        result = result or f"{len(self._nodes)}/{op}"
        self._nodes.append(helper.make_node(op, inputs, [result], **attributes))
        return result

    def _tensor(self, step: Step, name: str) -> str:
        """Its name; empty if the step has none."""
        array = self._mlp.tensor(step, name)
        return "" if array is None else self._array(f"{step.prefix}.{name}", array)

    def _number(self, value: float) -> str:
        return self._array(f"number {value!r}", np.array(value))

    def _array(self, name: str, values: Any, dtype: Any = np.float32) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.asarray(values).astype(dtype), name)
        return name
