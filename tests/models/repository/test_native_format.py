# SPDX-License-Identifier: Apache-2.0
"""Saving and loading version directories, and what happens when their files are damaged."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fused_mlp import models
from fused_mlp.models import LayerSpec, LayerWeights, Mlp, MlpSpec, ModelLoadError


def same(a: Mlp, b: Mlp) -> bool:
    tensors = b.tensors()
    return (
        (a.spec, a.example, a.source) == (b.spec, b.example, b.source)
        and a.tensors().keys() == tensors.keys()
        and all(
            array.dtype == tensors[name].dtype and np.array_equal(array, tensors[name])
            for name, array in a.tensors().items()
        )
    )


@pytest.fixture
def saved(small_mlp, tmp_path):
    path = tmp_path / "model" / "1"
    models.save(small_mlp, path)
    return path


def edit_json(path, **changes):
    file = path / "model.json"
    content = json.loads(file.read_text())
    for key, value in changes.items():
        target = content if key in ("format", "example", "source", "spec", "surprise") else content["spec"]
        target[key] = value
    file.write_text(json.dumps(content))


def edit_tensors(path, changes):
    tensors = load_file(path / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, path / "model.safetensors")


def test_a_saved_model_loads_as_it_was(small_mlp, tmp_path):
    mlp = small_mlp.annotated(
        labels=["a", "b", "ü"], description="three", example=[1, 2.5, 3, 4, 5], source="a test"
    )
    models.save(mlp, tmp_path / "m" / "1")
    assert same(models.load(tmp_path / "m" / "1"), mlp)
    assert same(models.load(tmp_path / "m" / "1" / "model.json"), mlp)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gated_and_half_precision_models_survive(dtype, tmp_path):
    torch.manual_seed(1)
    spec = MlpSpec(
        in_features=3,
        layers=(
            LayerSpec(out_features=4, gated=True, activation="silu"),
            LayerSpec(out_features=2, bias=False, activation="leaky_relu", negative_slope=0.2),
            LayerSpec(out_features=1, gated=True, bias=False),
        ),
        output_activation="log_softmax",
        dtype=dtype,
    )
    mlp = Mlp(
        spec,
        (
            LayerWeights(torch.randn(4, 3), torch.randn(4), torch.randn(4, 3), torch.randn(4)),
            LayerWeights(torch.randn(2, 4)),
            LayerWeights(torch.randn(1, 2), None, torch.randn(1, 2)),
        ),
    )
    models.save(mlp, tmp_path / "1")
    assert same(models.load(tmp_path / "1"), mlp)


def test_saving_never_overwrites(saved, small_mlp):
    before = (saved / "model.json").read_bytes()
    with pytest.raises(ModelLoadError, match="exists already"):
        models.save(small_mlp.annotated(description="other"), saved)
    assert (saved / "model.json").read_bytes() == before


def test_a_failed_save_leaves_nothing_behind(small_mlp, tmp_path, monkeypatch):
    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(ModelLoadError, match="No space left on device"):
        models.save(small_mlp, tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def test_a_version_appears_in_one_step(small_mlp, tmp_path, monkeypatch):
    seen = []

    def interrupted(draft, target):
        seen.extend(path.name for path in draft.iterdir())
        assert not target.exists()
        raise OSError(4, "Interrupted system call")

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(ModelLoadError, match="Interrupted system call"):
        models.save(small_mlp, tmp_path / "1")
    assert sorted(seen) == ["model.json", "model.safetensors", "model.safetensors.sha256"]
    assert list(tmp_path.iterdir()) == []


def test_saved_files_are_readable_by_the_user_the_server_runs_as(saved):
    umask = os.umask(0)
    os.umask(umask)
    assert saved.stat().st_mode & 0o777 == 0o777 & ~umask


def test_a_loaded_model_does_not_change_with_its_file(saved):
    mlp = models.load(saved)
    before = mlp.layers[0].weight.copy()
    weights = saved / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(b"\xff" * 64)
    assert np.array_equal(mlp.layers[0].weight, before)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda p: (p / "model.json").unlink(), "model.json: no such file"),
        (lambda p: (p / "model.safetensors").unlink(), "model.safetensors: no such file"),
        (lambda p: (p / "model.json").write_text("{"), "Invalid JSON"),
        (lambda p: (p / "model.json").write_bytes(b"\xff\xfe"), "model.json: "),
        (lambda p: (p / "model.json").write_text("[]"), "model.json: "),
        (lambda p: edit_json(p, format="fused-mlp/9"), "format: Input should be 'fused-mlp/1'"),
        (lambda p: edit_json(p, surprise=1), "surprise: Extra inputs"),
        (lambda p: edit_json(p, in_features=0), "spec.in_features: .* greater than or equal to 1"),
        (lambda p: edit_json(p, in_features="5"), "spec.in_features: .* valid integer"),
        (lambda p: edit_json(p, layers=[]), "spec.layers: "),
        (lambda p: edit_json(p, output_activation="swoosh"), "spec.output_activation"),
        (lambda p: edit_json(p, labels=["one"]), "1 labels for 3 outputs"),
        (lambda p: edit_json(p, example=[1.0]), "example: expected 5 values, got 1"),
        (lambda p: edit_json(p, example=[float("nan")] * 5), "example.0: .* finite number"),
        (lambda p: edit_json(p, in_features=6), r"'0.weight': expected shape \(7, 6\), got \(7, 5\)"),
        (lambda p: edit_json(p, dtype="float16"), r"'0.bias' is F32, but model.json says F16"),
        (lambda p: edit_tensors(p, {"2.bias": None}), "'2.bias' is missing"),
        (lambda p: edit_tensors(p, {"4.bias": torch.ones(3)}), "'4.bias' is not part of"),
        (lambda p: edit_tensors(p, {"0.bias": torch.ones(7, 1)}), "'0.bias': expected shape"),
        (lambda p: edit_tensors(p, {"0.bias": torch.ones(7).half()}), "'0.bias' is F16"),
        (lambda p: edit_tensors(p, {"0.bias": torch.full((7,), torch.nan)}), "7 of 7 values are NaN"),
        (lambda p: (p / "model.safetensors").write_bytes(b""), "not a readable safetensors file"),
        (lambda p: (p / "model.safetensors").write_bytes(b"\xff" * 99), "not a readable safetensors file"),
        (
            lambda p: os.truncate(p / "model.safetensors", (p / "model.safetensors").stat().st_size - 4),
            "not a readable safetensors file",
        ),
    ],
)
def test_a_damaged_version_is_refused_in_one_line(saved, damage, text):
    damage(saved)
    with pytest.raises(ModelLoadError, match=text) as caught:
        models.load(saved)
    assert "\n" not in str(caught.value)
    assert str(saved) in str(caught.value)


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (lambda p: p / "absent", "no such file or directory"),
        (lambda p: p, "load one of its versions, such as .*1$"),
        (lambda p: (p / "weights.pt", (p / "weights.pt").touch())[0], "from_state_dict"),
        (lambda p: (p / "w.safetensors", (p / "w.safetensors").touch())[0], "from_safetensors"),
        (lambda p: (p / "notes.txt", (p / "notes.txt").touch())[0], "expected a version directory"),
    ],
)
def test_load_says_what_to_do_with_other_paths(saved, prepare, text):
    with pytest.raises(ModelLoadError, match=text):
        models.load(prepare(saved.parent))


def test_an_mlp_keeps_its_weights_when_the_module_trains_on(small_module):
    mlp = models.from_torch(small_module)
    before = mlp.layers[0].weight.copy()
    first = small_module[0]
    assert isinstance(first, nn.Linear)
    nn.init.zeros_(first.weight)
    assert np.array_equal(mlp.layers[0].weight, before)
