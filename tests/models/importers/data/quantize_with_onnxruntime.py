# SPDX-License-Identifier: Apache-2.0
"""Writes quantized.npz: a small MLP as onnxruntime quantises it, in each way, and what onnxruntime answers to some
rows, one at a time. Needs onnxruntime, which the tests do not: python quantize_with_onnxruntime.py"""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from torch import nn

INT8, UINT8 = QuantType.QInt8, QuantType.QUInt8
QDQ, OPERATORS = QuantFormat.QDQ, QuantFormat.QOperator
# By name: weights, whether each output has its own scale, and for static ones the form and the type of the rows.
DYNAMIC = {
    "dynamic int8": (INT8, False),
    "dynamic int8 by output": (INT8, True),
    "dynamic uint8": (UINT8, False),
    "dynamic uint8 by output": (UINT8, True),
}
STATIC = {
    "static int8": (INT8, False, QDQ, INT8),
    "static int8 by output": (INT8, True, QDQ, UINT8),
    "static uint8": (UINT8, False, QDQ, UINT8),
    "operators int8 by output": (INT8, True, OPERATORS, INT8),
    "operators uint8": (UINT8, False, OPERATORS, UINT8),
}


def build() -> nn.Module:
    """onnxruntime drops the functions with limits: those of the rows' range stand for them."""
    torch.manual_seed(0)
    parts = [nn.Linear(12, 24), nn.ReLU6(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 16), nn.SiLU()]
    return nn.Sequential(*parts, nn.LayerNorm(16), nn.Linear(16, 5), nn.Softmax(-1)).eval()


class Rows(CalibrationDataReader):
    def __init__(self, x: np.ndarray) -> None:
        self._rows = iter(x[:, None])

    def get_next(self) -> dict[str, np.ndarray] | None:
        row = next(self._rows, None)
        return None if row is None else {"x": row}


def answers(path: Path, x: np.ndarray, optimised: Path | None = None) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in x])


def main() -> None:
    x = (3 * np.random.default_rng(0).standard_normal((40, 12))).astype(np.float32)
    kept: dict[str, np.ndarray] = {"x": x}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, path, optimised = (Path(folder) / name for name in ("plain.onnx", "q.onnx", "o.onnx"))
        rows = {"dynamic_axes": {"x": {0: "rows"}}, "input_names": ["x"]}
        torch.onnx.export(build(), (torch.from_numpy(x[:2]),), plain, dynamo=False, opset_version=17, **rows)
        for name, (weights, by_output) in DYNAMIC.items():
            quantize_dynamic(plain, path, weight_type=weights, per_channel=by_output)
            kept[f"{name}: file"] = np.frombuffer(path.read_bytes(), np.uint8)
            kept[f"{name}: answers"] = answers(path, x, optimised)
            if not by_output:
                kept[f"optimised {name}: file"] = np.frombuffer(optimised.read_bytes(), np.uint8)
                kept[f"optimised {name}: answers"] = answers(optimised, x)
        for name, (weights, by_output, form, of_rows) in STATIC.items():
            types = {"weight_type": weights, "activation_type": of_rows}
            quantize_static(plain, path, Rows(x), quant_format=form, per_channel=by_output, **types)
            assert not any(node.op_type in ("Relu", "Clip") for node in onnx.load(path).graph.node)
            kept[f"{name}: file"] = np.frombuffer(path.read_bytes(), np.uint8)
            kept[f"{name}: answers"] = answers(path, x)
        kept["float"] = answers(plain, x)
    np.savez_compressed(Path(__file__).with_name("quantized.npz"), **kept)


if __name__ == "__main__":
    main()
