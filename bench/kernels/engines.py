# SPDX-License-Identifier: Apache-2.0
"""The ways to run an MLP that the benchmark compares: each takes a model and returns its fastest call from
Python, x (rows, in_features) float32 in, an array out, or several where the model has several outputs. Imports an
engine only when asked for it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.kernels.onnx_export import onnx_bytes, with_int8_weights
from fused_mlp.models import Mlp
from fused_mlp.models.program.spec import Affine
from fused_mlp.models.weights.quantization import Precision

Call = Callable[[np.ndarray], Callable[[], Any]]  # x -> a call without arguments, for the timer


def fused(mlp: Mlp, threads: int) -> Call:
    return _fused(mlp, threads, "float32")


def fused_int8(mlp: Mlp, threads: int) -> Call:
    return _fused(mlp, threads, "int8")


def fused_bfloat16(mlp: Mlp, threads: int) -> Call:
    return _fused(mlp, threads, "bfloat16")


def _fused(mlp: Mlp, threads: int, precision: Precision) -> Call:
    from fused_mlp import kernels

    kernel = kernels.compile(mlp, device="cpu", backend="cpu", threads=threads, precision=precision)
    return lambda x: lambda: kernel(x)


def eager(mlp: Mlp, threads: int) -> Call:
    torch.set_num_threads(threads)
    return _torch_call(_module(mlp))


def torch_compile(mlp: Mlp, threads: int) -> Call:
    torch.set_num_threads(threads)
    torch._inductor.config.freezing = True  # weights become constants, and are packed for oneDNN
    # All models that are an nn.Sequential share one limit of 8 compilations, two for each model; beyond it
    # torch.compile runs eager without saying so.
    torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return _torch_call(torch.compile(_module(mlp), dynamic=True))


def last_row(result: Any) -> list[float]:
    """The last row of an engine's answer, all outputs side by side."""
    if isinstance(result, dict):
        result = list(result.values())
    parts = result if isinstance(result, (list, tuple)) else [result]
    return [float(value) for part in parts for value in np.atleast_1d(np.asarray(part)[-1])]


def _module(mlp: Mlp) -> torch.nn.Module:
    """With the batch norms that people write, where the program has only their scale and shift."""
    module = mlp.to_torch()
    for step in mlp.spec.steps:
        if isinstance(step, Affine):
            parent, _, last = step.name.rpartition(".")
            found = module.get_submodule(step.name)
            norm = torch.nn.BatchNorm1d(mlp.spec.widths_by_name[step.name], eps=0.0).eval()
            norm.weight, norm.bias = found.weight, found.bias
            setattr(module.get_submodule(parent), last, norm)
    return module.requires_grad_(False)


def _torch_call(module: Callable[[torch.Tensor], Any]) -> Call:
    def bind(x: np.ndarray) -> Callable[[], Any]:
        tensor = torch.from_numpy(x)

        # no_grad, not inference_mode: freezing asks for it, and it costs the same.
        def call() -> Any:
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
    return lambda x: lambda: session.run(None, {"input": x})


def onnx_runtime_int8(mlp: Mlp, threads: int) -> Call:
    """Its own dynamic quantization: int8 weights, one scale per output, rows quantized as they come."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path, quantized = Path(folder) / "model.onnx", Path(folder) / "int8.onnx"
        path.write_bytes(onnx_bytes(mlp))
        quantize_dynamic(path, quantized, weight_type=QuantType.QInt8, per_channel=True)
        session = onnxruntime.InferenceSession(str(quantized), options, providers=["CPUExecutionProvider"])
    return lambda x: lambda: session.run(None, {"input": x})


def torch_int8(engine: str) -> Callable[[Mlp, int], Call]:
    """torch's dynamic quantization of nn.Linear."""

    def make(mlp: Mlp, threads: int) -> Call:
        torch.set_num_threads(threads)
        torch.backends.quantized.engine = engine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module = torch.ao.quantization.quantize_dynamic(_module(mlp), {torch.nn.Linear}, torch.qint8)
        return _torch_call(module)

    return make


def openvino(mlp: Mlp, threads: int) -> Call:
    return _openvino(mlp, onnx_bytes(mlp), threads)


def openvino_int8(mlp: Mlp, threads: int) -> Call:
    """int8 weights, one scale per output; it quantizes rows in groups, of which those of 128 are the fastest."""
    return _openvino(mlp, with_int8_weights(onnx_bytes(mlp)), threads, DYNAMIC_QUANTIZATION_GROUP_SIZE=128)


def _openvino(mlp: Mlp, model: bytes, threads: int, **options: Any) -> Call:
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            **options,
        }
        request = openvino.Core().compile_model(str(path), "CPU", config).create_infer_request()
    outputs = range(len(mlp.spec.outputs))

    def bind(x: np.ndarray) -> Callable[[], Any]:
        def call() -> list[np.ndarray]:
            answer = request.infer([x], share_inputs=True, share_outputs=True)
            return [answer[index] for index in outputs]

        return call

    return bind


FLOAT_ENGINES: dict[str, Callable[[Mlp, int], Call]] = {
    "fused": fused,
    "eager": eager,
    "torch.compile": torch_compile,
    "ONNX Runtime": onnx_runtime,
    "OpenVINO": openvino,
}
PRECISION_ENGINES: dict[str, Callable[[Mlp, int], Call]] = {
    "fused": fused,
    "fused int8": fused_int8,
    "fused bf16": fused_bfloat16,
    "ONNX Runtime int8": onnx_runtime_int8,
    "OpenVINO int8": openvino_int8,
    "torch int8 fbgemm": torch_int8("fbgemm"),
    "torch int8 onednn": torch_int8("onednn"),
}
ENGINES = FLOAT_ENGINES | PRECISION_ENGINES


PACKAGES = ("torch", "numpy", "onnxruntime", "openvino")
