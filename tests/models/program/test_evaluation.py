# SPDX-License-Identifier: Apache-2.0
"""The reference means what PyTorch means, step by step, in float64."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from fused_mlp.models import LayerSpec, Mlp, MlpSpec
from fused_mlp.models.program.evaluation import Arithmetic, evaluate, evaluate_values
from fused_mlp.models.program.spec import (
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

WIDTH = 6


def random_mlp(spec, seed=0):
    generator = np.random.default_rng(seed)
    return Mlp(spec, {name: generator.standard_normal(shape, np.float32) for name, shape in spec.shapes()})


def rows(seed=1):
    """Ordinary rows, zeros, equal values, large and tiny ones."""
    x = np.random.default_rng(seed).standard_normal((9, WIDTH))
    x[1] = 0
    x[2] = 3
    x[3] *= 1e4
    x[4] *= 1e-9
    return x


def tensors(mlp):
    return {
        name.rpartition(".")[2]: torch.from_numpy(array).double() for name, array in mlp.tensors().items()
    }


def layer_norm(t, w):
    return functional.layer_norm(t, (WIDTH,), w.get("weight"), w.get("bias"), 1e-5)


def rms_norm(t, w):
    scaled = functional.rms_norm(t, (WIDTH,), w.get("weight"), 1e-3)
    return scaled + w["bias"] if "bias" in w else scaled


def l2_norm(t, w):
    return functional.normalize(t, dim=1, eps=1e-12)


PAIR = ("input", "other")
OTHER = Elementwise(name="other", input="input", function="sin")
STEPS = {
    "linear": (Linear(name="s", input="input", out_features=4), lambda t, w: t @ w["weight"].T + w["bias"]),
    "linear, bare": (Linear(name="s", input="input", out_features=1, bias=False), lambda t, w: t @ w["weight"].T),
    "gated": (
        Gated(name="s", input="input", out_features=5, function="gelu"),
        lambda t, w: functional.gelu(functional.linear(t, w["gate_weight"], w["gate_bias"]))
        * functional.linear(t, w["weight"], w["bias"]),
    ),
    "bilinear": (
        Gated(name="s", input="input", out_features=5, function="x", bias=False),
        lambda t, w: (t @ w["gate_weight"].T) * (t @ w["weight"].T),
    ),
    "elementwise": (Elementwise(name="s", input="input", function="mish"), lambda t, _: functional.mish(t)),
    "layer norm": (Norm(name="s", input="input", kind="layer"), layer_norm),
    "layer norm, bare": (Norm(name="s", input="input", kind="layer", weight=False, bias=False), layer_norm),
    "rms norm": (Norm(name="s", input="input", kind="rms", eps=1e-3, bias=False), rms_norm),
    "rms norm with bias": (Norm(name="s", input="input", kind="rms", eps=1e-3), rms_norm),
    "l2": (Norm(name="s", input="input", kind="l2", eps=1e-12, weight=False, bias=False), l2_norm),
    "affine": (Affine(name="s", input="input"), lambda t, w: t * w["weight"] + w["bias"]),
    "scale": (Affine(name="s", input="input", bias=False), lambda t, w: t * w["weight"]),
    "softmax": (Softmax(name="s", input="input"), lambda t, _: t.softmax(-1)),
    "log_softmax": (Softmax(name="s", input="input", op="log_softmax"), lambda t, _: t.log_softmax(-1)),
    "add": (Combine(name="s", op="add", inputs=PAIR), lambda t, _: t + t.sin()),
    "subtract": (Combine(name="s", op="subtract", inputs=PAIR), lambda t, _: t - t.sin()),
    "multiply": (Combine(name="s", op="multiply", inputs=PAIR), lambda t, _: t * t.sin()),
    "divide": (Combine(name="s", op="divide", inputs=PAIR), lambda t, _: t / t.sin()),
    "maximum": (Combine(name="s", op="maximum", inputs=PAIR), lambda t, _: torch.maximum(t, t.sin())),
    "minimum": (Combine(name="s", op="minimum", inputs=PAIR), lambda t, _: torch.minimum(t, t.sin())),
    "concat": (Concat(name="s", inputs=("other", "input", "input")), lambda t, _: torch.cat([t.sin(), t, t], 1)),
    "slice": (Slice(name="s", input="input", start=2, stop=5), lambda t, _: t[:, 2:5]),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_torchs(name):
    step, expected = STEPS[name]
    steps = [OTHER, step] if "other" in step.sources else [step]
    mlp = random_mlp(MlpSpec(in_features=WIDTH, steps=steps))
    x = rows()
    found = evaluate(mlp, x)
    assert found.dtype == np.float64
    # Both in float64: a few roundings of the largest number on the way.
    np.testing.assert_allclose(
        found, expected(torch.from_numpy(x), tensors(mlp)).numpy(), rtol=1e-11, atol=1e-14
    )


def test_every_step_is_tried():
    ops = {step.op for step, _ in STEPS.values()}
    assert ops == {
        "linear", "gated", "elementwise", "norm", "affine", "softmax", "log_softmax", "concat", "slice",
        "add", "subtract", "multiply", "divide", "maximum", "minimum",
    }  # fmt: skip


def test_nan_and_infinity_stay_in_their_row():
    mlp = random_mlp(
        MlpSpec(
            in_features=WIDTH,
            steps=[
                Norm(name="n", input="input", kind="layer"),
                Linear(name="a", input="n", out_features=4),
                Softmax(name="p", input="a"),
            ],
        )
    )
    x = rows()
    expected = evaluate(mlp, x)
    x[5, 0], x[6, 1] = np.nan, np.inf
    found = evaluate(mlp, x)
    assert np.isnan(found[[5, 6]]).all()
    rest = [0, 1, 2, 3, 4, 7, 8]
    # BLAS may add up in another order for other operands.
    np.testing.assert_allclose(found[rest], expected[rest], rtol=1e-12)


def test_outputs_lie_side_by_side_in_their_order():
    spec = MlpSpec(
        in_features=WIDTH,
        steps=[
            Linear(name="a", input="input", out_features=4),
            Linear(name="b", input="a", out_features=2),
        ],
        outputs=[
            Output(name="v", value="b"),
            Output(name="hidden", value="a"),
            Output(name="x", value="input"),
        ],
    )
    mlp, x = random_mlp(spec), rows()
    found, values = evaluate(mlp, x), evaluate_values(mlp, x)
    assert found.shape == (9, spec.out_features) == (9, 12)
    for output in spec.outputs:
        assert np.array_equal(found[:, spec.columns(output.name)], values[output.value])


def test_a_matrix_can_be_used_twice():
    steps = [
        Linear(name="a", input="input", out_features=WIDTH, bias=False),
        Linear(name="b", input="a", out_features=WIDTH, bias=False, weights="a"),
    ]
    mlp = random_mlp(MlpSpec(in_features=WIDTH, steps=steps))
    assert list(mlp.tensors()) == ["a.weight"]
    matrix = mlp.tensors()["a.weight"].astype(np.float64)
    np.testing.assert_allclose(evaluate(mlp, rows()), rows() @ matrix.T @ matrix.T, rtol=1e-12, atol=1e-14)


def test_float32_stays_float32():
    spec = MlpSpec.of_layers(
        WIDTH, [LayerSpec(out_features=8, activation="gelu"), LayerSpec(out_features=3)], "softmax"
    )
    mlp = random_mlp(spec)
    x = rows().astype(np.float32)
    found = evaluate(mlp, x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, evaluate(mlp, x.astype(np.float64)), rtol=1e-3, atol=1e-6)


def test_a_kernels_rounding_is_applied_to_every_value_it_stores():
    class Rounded(Arithmetic):
        def stored(self, values):
            return np.round(values, 1)

    spec = MlpSpec(
        in_features=WIDTH,
        steps=[
            Gated(name="g", input="input", out_features=WIDTH, function="tanh"),
            Norm(name="n", input="g", kind="rms"),
            Combine(name="s", op="add", inputs=("n", "input")),
        ],
    )
    values = evaluate_values(random_mlp(spec), np.round(rows(), 1), Rounded())
    for value in values.values():
        assert np.array_equal(value, np.round(value, 1))
