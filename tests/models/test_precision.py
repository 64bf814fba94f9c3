"""Weights in fewer bits: what they cost is measured and bounded, and they survive a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fused_mlp.models import Mlp, MlpSpec, ModelLoadError, load, save
from fused_mlp.models.evaluation import Int8Products, evaluate
from fused_mlp.models.precision import reduce_precision, to_precision
from fused_mlp.models.quantization import Int8Matrix, quantize_rows, to_int8
from fused_mlp.models.spec import INPUT, Elementwise, Linear
from tests.support.random_programs import random_rows, random_weights


def classifier(*widths: int) -> Mlp:
    steps: list[Linear | Elementwise] = []
    value = INPUT
    for number, width in enumerate(widths[1:]):
        steps.append(Linear(name=f"fc{number}", input=value, out_features=width))
        value = f"fc{number}"
        if number < len(widths) - 2:
            steps.append(Elementwise(name=f"relu{number}", input=value, function="relu"))
            value = f"relu{number}"
    return random_weights(MlpSpec(in_features=widths[0], steps=tuple(steps)))


def with_tensor(mlp: Mlp, name: str, change: Any) -> Mlp:
    tensors = mlp.tensors()
    tensors[name] = change(tensors[name].copy())
    return Mlp(mlp.spec, tensors)


def test_each_output_has_a_scale_of_its_own() -> None:
    weight = np.array([[1.01, -2.0, 0.503], [1e-3, 0.0, -5.03e-4], [0.0, 0.0, 0.0]], np.float32)
    matrix = to_int8(weight)
    assert matrix.values.tolist() == [[64, -127, 32], [127, 0, -64], [0, 0, 0]]
    np.testing.assert_allclose(matrix.widened(), weight, atol=0.5 * 2 / 127)
    assert (matrix.scales > 0).all()


def test_rows_are_quantized_by_their_largest_value() -> None:
    x = np.array([[1.0, -4.0, 2.0], [0.0, 0.0, 0.0], [np.nan, 1.0, 2.0], [np.inf, 1.0, 2.0]], np.float32)
    values, scales = quantize_rows(x)
    assert values[:2].tolist() == [[32, -127, 64], [0, 0, 0]]
    assert np.isnan(scales[2:]).all()
    assert scales[0, 0] == np.float32(4) / np.float32(127)


@pytest.mark.parametrize(("precision", "worst"), [("bfloat16", 0.01), ("int8", 0.04)])
def test_the_error_is_measured_against_float64(precision: Any, worst: float) -> None:
    plain = classifier(40, 64, 64, 10)
    x = random_rows(plain, 300)
    mlp = reduce_precision(plain, precision, x)
    error = mlp.error
    assert error is not None
    exact = evaluate(plain, x.astype(np.float64))
    difference = np.abs(evaluate(mlp, x, Int8Products()) - exact).max() / np.abs(exact).max()
    assert error.largest == pytest.approx(difference)
    assert 0 < error.mean < error.largest < worst
    assert 0.99 < error.cosine < 1
    assert error.top1 is not None
    assert 0.9 < error.top1 <= 1
    assert (error.rows, error.calibrated, error.kept) == (300, True, ())
    assert mlp.precision == precision


def test_a_layer_for_which_int8_costs_too_much_stays_in_float32() -> None:
    """One input of the first layer is a thousand times as large as the others, which its scale therefore loses."""
    mlp = classifier(32, 64, 64, 5)
    x = random_rows(mlp, 200)
    x[:, 0] *= 1000
    mlp = with_tensor(mlp, "fc0.weight", lambda w: np.where(np.arange(32) == 0, w / 1e6, w))
    found = reduce_precision(mlp, "int8", x)
    assert found.error is not None
    assert found.error.kept == ("fc0",)
    assert set(found.reduced) == {"fc1.weight", "fc2.weight"}
    assert "in float32: fc0" in str(found.error)


def test_an_error_above_the_bound_is_refused_by_the_name_of_the_step() -> None:
    mlp = classifier(32, 64, 5)
    with pytest.raises(
        ModelLoadError, match=r"int8: expected an error of at most 0\.00%.*step 'fc[01]' alone has"
    ):
        reduce_precision(mlp, "int8", max_error=1e-6)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (np.zeros((3, 4), np.float32), r"expected numbers of shape \(rows, 8\), got float32 \(3, 4\)"),
        (np.zeros((0, 8), np.float32), r"expected numbers of shape \(rows, 8\)"),
        (np.full((2, 8), np.nan, np.float32), "expected finite numbers"),
        (np.full((2, 8), "a"), "expected numbers"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(rows: Any, problem: str) -> None:
    with pytest.raises(ModelLoadError, match=problem):
        reduce_precision(classifier(8, 3), "int8", rows)


def test_what_is_reduced_already_is_not_reduced_again() -> None:
    mlp = to_precision(classifier(8, 3), "int8")
    assert to_precision(mlp, "int8") is mlp
    with pytest.raises(ModelLoadError, match="in int8 already"):
        to_precision(mlp, "bfloat16")
    with pytest.raises(ModelLoadError, match="precision: expected float32, bfloat16, int8, got 'int4'"):
        to_precision(mlp, "int4")  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_file_holds_the_same_weights_and_their_error(tmp_path: Path, precision: Any) -> None:
    plain = classifier(200, 100, 10)
    mlp = reduce_precision(plain, precision)
    save(mlp, tmp_path / "1")
    again = load(tmp_path / "1")
    assert (again.precision, again.error) == (precision, mlp.error)
    assert again.reduced.keys() == mlp.reduced.keys()
    for name, tensor in mlp.tensors().items():
        np.testing.assert_array_equal(again.tensors()[name], tensor)
    save(plain, tmp_path / "2")
    sizes = [(tmp_path / version / "model.safetensors").stat().st_size for version in "12"]
    assert sizes[0] < sizes[1] * (0.3 if precision == "int8" else 0.55)
    assert json.loads((tmp_path / "1" / "model.json").read_text())["format"] == "fused-mlp/3"
    assert json.loads((tmp_path / "2" / "model.json").read_text())["format"] == "fused-mlp/2"


def _without_scales(tensors: dict[str, Any]) -> None:
    del tensors["fc1.weight_scale"]


def _negative_scale(tensors: dict[str, Any]) -> None:
    tensors["fc1.weight_scale"][2] = -1


def _nan_scale(tensors: dict[str, Any]) -> None:
    tensors["fc0.weight_scale"][0] = np.nan


def _short_scales(tensors: dict[str, Any]) -> None:
    tensors["fc0.weight_scale"] = tensors["fc0.weight_scale"][:-1].copy()


def _minus_128(tensors: dict[str, Any]) -> None:
    tensors["fc0.weight"][0, 0] = -128


def _int8_bias(tensors: dict[str, Any]) -> None:
    tensors["fc0.bias"] = tensors["fc0.bias"].astype(np.int8)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_without_scales, "'fc1.weight' is I8, but its scales 'fc1.weight_scale' are missing"),
        (_negative_scale, "'fc1.weight': expected scales that are finite and above zero, 1 of 4 are not"),
        (_nan_scale, "'fc0.weight': expected scales that are finite and above zero, 1 of 16 are not"),
        (_short_scales, r"'fc0.weight_scale': expected shape \(16,\), got \(15,\)"),
        (_minus_128, "'fc0.weight': expected values from -127 to 127, got -128"),
        (_int8_bias, "'fc0.bias'"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, damage: Any, problem: str) -> None:
    save(to_precision(classifier(8, 16, 4), "int8"), tmp_path / "1")
    path = tmp_path / "1" / "model.safetensors"
    tensors = load_file(path)
    damage(tensors)
    save_file(tensors, path)
    with pytest.raises(ModelLoadError, match=problem):
        load(tmp_path / "1")


def test_int8_weights_in_a_file_that_says_float32_are_refused(tmp_path: Path) -> None:
    save(to_precision(classifier(8, 16, 4), "int8"), tmp_path / "1")
    path = tmp_path / "1" / "model.json"
    content = json.loads(path.read_text())
    del content["precision"]
    path.write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match=r"is I8, but model\.json says F32 \(float32\)"):
        load(tmp_path / "1")


def test_steps_that_share_weights_share_their_precision() -> None:
    spec = MlpSpec(
        in_features=8,
        steps=(
            Linear(name="a", input=INPUT, out_features=8),
            Linear(name="b", input="a", out_features=8, weights="a"),
            Linear(name="c", input="b", out_features=2),
        ),
    )
    mlp = random_weights(spec)
    assert set(to_precision(mlp, "int8").reduced) == {"a.weight", "c.weight"}
    assert set(to_precision(mlp, "int8", frozenset({"b"})).reduced) == {"c.weight"}


def test_a_matrix_with_too_many_inputs_for_exact_sums_stays_in_float32() -> None:
    values = np.zeros((1, 131073), np.int8)
    spec = MlpSpec(in_features=131073, steps=(Linear(name="a", input=INPUT, out_features=1, bias=False),))
    with pytest.raises(ModelLoadError, match="expected at most 131072 inputs in int8, got 131073"):
        Mlp(spec, {}, reduced={"a.weight": Int8Matrix(values, np.ones(1, np.float32))})
    assert to_precision(random_weights(spec), "int8").precision == "float32"
