"""A model as ONNX with a dynamic batch: the operators that PyTorch's exporter makes of it, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from fused_mlp.models import Mlp
from fused_mlp.models.spec import INPUT, Combine, Gated, Step

_COMBINATIONS = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "maximum": "Max",
    "minimum": "Min",
}
_FUNCTIONS = {"relu": "Relu", "gelu": "Gelu", "tanh": "Tanh", "sigmoid": "Sigmoid"}


class _Graph:
    def __init__(self, mlp: Mlp) -> None:
        self.mlp = mlp
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def tensor(self, step: Step, name: str) -> str:
        array = self.mlp.tensor(step, name)
        assert array is not None
        full = f"{step.prefix}.{name}"
        if full not in {constant.name for constant in self.constants}:
            self.constants.append(numpy_helper.from_array(array, full))
        return full

    def linear(self, step: Any, output: str, half: str = "") -> str:
        vectors = [self.tensor(step, f"{half}bias")] if step.bias else []
        return self.node("Gemm", [step.input, self.tensor(step, f"{half}weight"), *vectors], output, transB=1)

    def function(self, value: str, function: str, output: str) -> str:
        if function == "silu":
            return self.node("Mul", [value, self.node("Sigmoid", [value], f"{output}.sigmoid")], output)
        return self.node(_FUNCTIONS[function], [value], output)

    def add(self, step: Step) -> None:
        name = step.name
        match step.op:
            case "linear":
                self.linear(step, name)
            case "gated":
                assert isinstance(step, Gated)
                gate = self.function(
                    self.linear(step, f"{name}.gate", "gate_"), step.function, f"{name}.function"
                )
                self.node("Mul", [gate, self.linear(step, f"{name}.up")], name)
            case "elementwise":
                self.function(step.input, step.function, name)
            case "norm":
                vectors = [self.tensor(step, "weight"), self.tensor(step, "bias")]
                self.node("LayerNormalization", [step.input, *vectors], name, epsilon=step.eps)
            case "affine":
                width = self.mlp.spec.widths_by_name[name]
                for part, values in (("mean", np.zeros), ("variance", np.ones)):
                    self.constants.append(
                        numpy_helper.from_array(values(width, np.float32), f"{name}.{part}")
                    )
                inputs = [
                    self.tensor(step, "weight"),
                    self.tensor(step, "bias"),
                    f"{name}.mean",
                    f"{name}.variance",
                ]
                self.node("BatchNormalization", [step.input, *inputs], name, epsilon=0.0)
            case "concat":
                self.node("Concat", list(step.inputs), name, axis=1)
            case _:
                assert isinstance(step, Combine), step.op
                self.node(_COMBINATIONS[step.op], list(step.inputs), name)


def onnx_bytes(mlp: Mlp) -> bytes:
    graph = _Graph(mlp)
    for step in mlp.spec.steps:
        graph.add(step)
    widths = mlp.spec.widths_by_name

    def info(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", widths[name]])

    outputs = [info(output.value) for output in mlp.spec.outputs]
    made = helper.make_graph(graph.nodes, "mlp", [info(INPUT)], outputs, graph.constants)
    # Opset 20 is the first with Gelu; the IR version is the one that came with it.
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return model.SerializeToString()
