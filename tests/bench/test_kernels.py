"""The models that the kernel benchmark hands to other engines compute what ours does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.kernels.onnx_graph import onnx_bytes
from bench.kernels.shapes import SHAPES, build
from fused_mlp import from_onnx, kernels


@pytest.mark.parametrize("shape", ["64-128-128-10 relu", "128x8 deep silu", "GeGLU 768-3072-768"])
def test_the_onnx_model_of_the_benchmark_is_the_same_model(shape: str, tmp_path: Path) -> None:
    mlp = build(shape)
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_bytes(mlp))
    x = np.random.default_rng(0).standard_normal((3, SHAPES[shape].in_features), np.float32)
    expected = kernels.compile(mlp, threads=1)(x)
    assert np.array_equal(kernels.compile(from_onnx(path), threads=1)(x), expected)
