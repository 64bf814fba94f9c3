"""The ways to run an MLP that the benchmark compares: each takes a model and returns its fastest call from
Python, x (rows, in_features) float32 in, an array out. Imports an engine only when asked for it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fused_mlp.models import Mlp
from fused_mlp.models.dtypes import Array

Call = Callable[[np.ndarray], Callable[[], Any]]  # x -> a call without arguments, for the timer


def fused(mlp: Mlp, threads: int) -> Call:
    from fused_mlp import kernels

    kernel = kernels.compile(mlp, device="cpu", backend="cpu", threads=threads)
    return lambda x: lambda: kernel(x)


def eager(mlp: Mlp, threads: int) -> Call:
    torch.set_num_threads(threads)
    return _torch_call(mlp.to_torch())


def torch_compile(mlp: Mlp, threads: int) -> Call:
    torch.set_num_threads(threads)
    torch._inductor.config.freezing = True  # weights become constants, and are packed for oneDNN
    return _torch_call(torch.compile(mlp.to_torch(), dynamic=True))


def _torch_call(module: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    def bind(x: np.ndarray) -> Callable[[], torch.Tensor]:
        tensor = torch.from_numpy(x)

        # no_grad, not inference_mode: freezing asks for it, and it costs the same.
        def call() -> torch.Tensor:
            with torch.no_grad():
                return module(tensor)

        return call

    return bind


def onnx_runtime(mlp: Mlp, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(onnx_bytes(mlp), options, providers=["CPUExecutionProvider"])
    return lambda x: lambda: session.run(None, {"x": x})[0]


def openvino(mlp: Mlp, threads: int) -> Call:
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(onnx_bytes(mlp))
        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        request = openvino.Core().compile_model(str(path), "CPU", config).create_infer_request()
    return lambda x: lambda: request.infer([x], share_inputs=True, share_outputs=True)[0]


ENGINES: dict[str, Callable[[Mlp, int], Call]] = {
    "fused": fused,
    "eager": eager,
    "torch.compile": torch_compile,
    "ONNX Runtime": onnx_runtime,
    "OpenVINO": openvino,
}


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "numpy", "onnxruntime", "openvino")}


def onnx_bytes(mlp: Mlp) -> bytes:
    """The model as ONNX with a dynamic batch: what PyTorch's exporter makes of it (Gemm and activations)."""
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants: list[Any] = []

    def linear(x: str, weight: Array | None, bias: Array | None, name: str) -> str:
        assert weight is not None
        assert bias is not None
        constants.append(numpy_helper.from_array(weight, f"{name}.weight"))
        constants.append(numpy_helper.from_array(bias, f"{name}.bias"))
        nodes.append(helper.make_node("Gemm", [x, f"{name}.weight", f"{name}.bias"], [name], transB=1))
        return name

    def activate(x: str, activation: str) -> str:
        if activation == "identity":
            return x
        result = f"{x}.{activation}"
        if activation == "silu":
            nodes.append(helper.make_node("Sigmoid", [x], [f"{x}.sigmoid"]))
            nodes.append(helper.make_node("Mul", [x, f"{x}.sigmoid"], [result]))
        else:
            nodes.append(helper.make_node({"relu": "Relu", "gelu": "Gelu"}[activation], [x], [result]))
        return result

    value = "x"
    for index, (spec, layer) in enumerate(zip(mlp.spec.layers, mlp.layers, strict=True)):
        if spec.gated:
            gate = activate(
                linear(value, layer.gate_weight, layer.gate_bias, f"gate{index}"), spec.activation
            )
            up = linear(value, layer.weight, layer.bias, f"up{index}")
            value = f"gated{index}"
            nodes.append(helper.make_node("Mul", [gate, up], [value]))
        else:
            value = activate(linear(value, layer.weight, layer.bias, f"linear{index}"), spec.activation)
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", mlp.spec.in_features])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["rows", mlp.spec.out_features])],
        constants,
    )
    # Opset 20 is the first with Gelu; the IR version is the one that came with it.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return model.SerializeToString()
