# SPDX-License-Identifier: Apache-2.0
"""Weights in fewer bits: what they cost is measured and bounded, and they survive a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fused_mlp.models import Mlp, MlpSpec, ModelLoadError, load, save
from fused_mlp.models.program.evaluation import Int8Products, evaluate
from fused_mlp.models.program.spec import INPUT, Elementwise, Linear
from fused_mlp.models.weights import precision
from fused_mlp.models.weights.precision import reduce_precision, to_precision
from fused_mlp.models.weights.quantization import Int8Matrix, quantize_rows, to_int8
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
    sizes = np.abs(exact).max(axis=1, keepdims=True)
    differences = np.abs(evaluate(mlp, x, Int8Products()) - exact) / np.maximum(sizes, np.median(sizes))
    assert (error.largest, error.mean) == pytest.approx((differences.max(), differences.mean()))
    assert 0 < error.mean < error.largest < worst
    assert error.cosine is not None
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
    assert found.reduced_share == (64 * 64 + 64 * 5) / (32 * 64 + 64 * 64 + 64 * 5)
    assert "int8" in repr(found)
    # A row whose outputs are huge hides nothing.
    loud = np.zeros((1, 32), np.float32)
    loud[0, 1] = 1e6
    again = reduce_precision(mlp, "int8", np.concatenate([x, loud])).error
    assert again is not None
    assert again.kept == ("fc0",)


def test_one_output_has_no_angle_and_no_class() -> None:
    error = reduce_precision(classifier(32, 64, 1), "int8").error
    assert error is not None
    assert (error.cosine, error.top1) == (None, None)
    assert "cosine" not in str(error)


def test_many_layers_are_searched_with_few_rows_and_measured_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mlp = classifier(16, *[16] * 12, 4)
    x = random_rows(mlp, 1000)
    whole = reduce_precision(mlp, "int8", x, max_error=1).error
    assert whole is not None
    matrices: list[int] = []
    rows: list[int] = []
    measure = precision.measure
    monkeypatch.setattr(precision, "to_int8", lambda w: matrices.append(1) or to_int8(w))
    monkeypatch.setattr(
        precision, "measure", lambda m, e, x, *rest: rows.append(len(x)) or measure(m, e, x, *rest)
    )
    found = reduce_precision(mlp, "int8", x, max_error=0.7 * whole.largest).error
    assert found is not None
    assert found.rows == 1000
    assert found.kept
    assert found.largest <= 0.7 * whole.largest
    assert len(matrices) == 13  # each is quantised once
    assert sum(rows) < 6 * 1000


def test_a_layer_that_bfloat16_cannot_hold_stays_in_float32() -> None:
    mlp = with_tensor(classifier(8, 8, 3), "fc0.weight", lambda w: np.where(w > 0.3, np.float32(3.4e38), w))
    mlp = with_tensor(mlp, "fc1.weight", lambda w: w * np.float32(1e-30))
    found = reduce_precision(mlp, "bfloat16", random_rows(mlp, 10) * np.float32(1e-6))
    assert found.error is not None
    assert found.error.kept == ("fc0",)


def test_an_error_above_the_bound_is_refused_by_the_name_of_the_step() -> None:
    mlp = classifier(32, 64, 5)
    with pytest.raises(
        ModelLoadError, match=r"int8: expected an error of at most 0\.0001%.*step 'fc[01]' alone has"
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
    wide = to_precision(mlp, "float32")
    assert (wide.precision, wide.error) == ("float32", None)
    np.testing.assert_array_equal(wide.tensors()["fc0.weight"], mlp.tensors()["fc0.weight"])
    for given in ({"rows": np.zeros((2, 8), np.float32)}, {"max_error": 0.1}):
        with pytest.raises(ModelLoadError, match="in int8 already, import what it was made from"):
            reduce_precision(mlp, "int8", **given)  # type: ignore[arg-type]
        with pytest.raises(ModelLoadError, match="say precision='int8'"):
            reduce_precision(classifier(8, 3), None, **given)  # type: ignore[arg-type]
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


def _huge_scale(tensors: dict[str, Any]) -> None:
    tensors["fc0.weight_scale"][0] = 3e38


def _half_scales(tensors: dict[str, Any]) -> None:
    tensors["fc0.weight_scale"] = tensors["fc0.weight_scale"].astype(np.float16)


def _floats_alone(tensors: dict[str, Any]) -> None:
    for number in (0, 1):
        del tensors[f"fc{number}.weight_scale"]
        tensors[f"fc{number}.weight"] = tensors[f"fc{number}.weight"].astype(np.float32)


def _minus_128(tensors: dict[str, Any]) -> None:
    tensors["fc0.weight"][0, 0] = -128


def _int8_bias(tensors: dict[str, Any]) -> None:
    tensors["fc0.bias"] = tensors["fc0.bias"].astype(np.int8)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_without_scales, "'fc1.weight' is I8, but its scales 'fc1.weight_scale' are missing"),
        (_negative_scale, "'fc1.weight': expected scales above zero, up to 2.68e\\+36, 1 of 4 are not"),
        (_nan_scale, "'fc0.weight': expected scales above zero, up to 2.68e\\+36, 1 of 16 are not"),
        (_huge_scale, "'fc0.weight': expected scales above zero, up to"),
        (_half_scales, "'fc0.weight_scale' is F16, but model.json says F32"),
        (_floats_alone, "no tensor is I8, but model.json says int8"),
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


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"error": {"rows": 10**30}}, r"error\.rows: .*less than or equal to 2147483647"),
        ({"error": {"largest": -5.0}}, r"error\.largest: "),
        ({"error": {"largest": 1e308}}, r"error\.largest: "),
        ({"error": {"mean": float("nan")}}, r"error\.mean: "),
        ({"error": {"cosine": 7.0}}, r"error\.cosine: "),
        ({"error": {"top1": -3.0}}, r"error\.top1: "),
        ({"error": {"kept": ["x" * 10**6]}}, r"error\.kept: expected names of steps, got 'xxx"),
        ({"precision": "float32"}, "error: of no version whose precision is float32"),
        (
            {"format": "fused-mlp/2"},
            "int8 weights are of format fused-mlp/3 .*, got fused-mlp/2 with float32",
        ),
        ({"spec": {"dtype": "bfloat16"}}, "with spec.dtype float32, got fused-mlp/3 with bfloat16"),
    ],
)
def test_a_description_that_cannot_be_is_refused(tmp_path: Path, change: Any, problem: str) -> None:
    save(reduce_precision(classifier(8, 16, 4), "int8"), tmp_path / "1")
    path = tmp_path / "1" / "model.json"
    content = json.loads(path.read_text())
    for key, value in change.items():
        content[key] = content[key] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match=problem) as refused:
        load(tmp_path / "1")
    assert len(str(refused.value)) < 600 + len(str(path))


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
    x = random_rows(mlp, 50)
    x[:, 0] *= 1000
    found = reduce_precision(
        with_tensor(mlp, "a.weight", lambda w: np.where(np.arange(8) == 0, w / 1e6, w)), "int8", x
    )
    assert found.error is not None
    assert found.error.kept == ("a", "b")  # all that are not in int8, whatever the reason


def test_a_matrix_with_too_many_inputs_for_exact_sums_stays_in_float32() -> None:
    values = np.zeros((1, 131073), np.int8)
    spec = MlpSpec(in_features=131073, steps=(Linear(name="a", input=INPUT, out_features=1, bias=False),))
    with pytest.raises(ModelLoadError, match="expected at most 131072 inputs in int8, got 131073"):
        Mlp(spec, {}, reduced={"a.weight": Int8Matrix(values, np.ones(1, np.float32))})
    with pytest.warns(UserWarning, match=r"int8: no matrix .* up to 131072 inputs\): it stays in float32"):
        assert to_precision(random_weights(spec), "int8").precision == "float32"
    with pytest.raises(ModelLoadError, match="int8: no matrix of the model can be kept in it"):
        reduce_precision(random_weights(spec), "int8")
    narrow = Linear(name="b", input="a", out_features=2)
    found = reduce_precision(random_weights(MlpSpec(in_features=131073, steps=(*spec.steps, narrow))), "int8")
    assert found.error is not None
    assert found.error.kept == ("a",)
