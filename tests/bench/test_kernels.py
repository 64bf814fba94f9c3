"""The models that the kernel benchmark hands to other engines compute what ours does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.reference
import pytest

from bench.kernels.engines import last_row
from bench.kernels.onnx_export import onnx_bytes
from bench.kernels.shapes import SHAPES, build
from fused_mlp import from_onnx, kernels
from fused_mlp.kernels.profile.shapes import with_random_weights
from fused_mlp.models import MlpSpec
from fused_mlp.models.evaluation import evaluate
from fused_mlp.models.spec import (
    Affine,
    Combine,
    Concat,
    Elementwise,
    Gated,
    Linear,
    Norm,
    Output,
    Slice,
    Softmax,
)


@pytest.mark.parametrize("shape", ["64-128-128-10 relu", "128x8 deep silu", "GeGLU 768-3072-768"])
def test_the_onnx_model_of_the_benchmark_is_the_same_model(shape: str, tmp_path: Path) -> None:
    mlp = build(shape)
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_bytes(mlp))
    x = np.random.default_rng(0).standard_normal((3, SHAPES[shape].in_features), np.float32)
    expected = kernels.compile(mlp, threads=1)(x)
    assert np.array_equal(kernels.compile(from_onnx(path), threads=1)(x), expected)


EVERY_STEP = MlpSpec(
    in_features=6,
    steps=[
        Gated(name="gate", input="input", out_features=8, function="gelu_tanh"),
        Norm(name="layer", input="gate", kind="layer", weight=False, bias=False),
        Linear(name="up", input="layer", out_features=8, bias=False),
        Elementwise(name="f1", input="up", function="x * sigmoid(1.702 * x) + leaky_relu(x, 0.2) - clip(x, -1, 2)"),
        Elementwise(name="f2", input="f1", function="elu(x, 0.5) + softplus(x, 2, 20) / (1 + abs(silu(x)))"),
        Norm(name="rms", input="f2", kind="rms", bias=False),
        Combine(name="times", op="multiply", inputs=("rms", "gate")),
        Combine(name="less", op="subtract", inputs=("times", "f1")),
        Affine(name="affine", input="less"),
        Norm(name="l2", input="affine", kind="l2", weight=False, bias=False, eps=1e-12),
        Concat(name="both", inputs=("l2", "input")),
        Slice(name="part", input="both", start=3, stop=12),
        Softmax(name="p", input="part"),
        Softmax(name="log_p", input="part", op="log_softmax"),
    ],
    outputs=[Output(name="p", value="p"), Output(name="log_p", value="log_p")],
)  # fmt: skip
PROGRAMS = {name: spec for name, spec in SHAPES.items() if spec.layers is None} | {"every step": EVERY_STEP}


@pytest.mark.parametrize("shape", PROGRAMS)
def test_the_onnx_model_of_a_program_is_the_same_program(shape: str) -> None:
    mlp = with_random_weights(PROGRAMS[shape])
    session = onnx.reference.ReferenceEvaluator(onnx.load_from_string(onnx_bytes(mlp)))
    x = np.random.default_rng(0).standard_normal((3, mlp.spec.in_features), np.float32)
    # Both in float32, in other orders of summation.
    expected = evaluate(mlp, x)[-1]
    np.testing.assert_allclose(last_row(session.run(None, {"input": x})), expected, rtol=1e-4, atol=1e-4)
