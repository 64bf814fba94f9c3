# SPDX-License-Identifier: Apache-2.0
"""Importing files of every format into a repository."""

import threading

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fused_mlp import models
from fused_mlp.models import ModelLoadError, Repository
from fused_mlp.models.importers.importer import import_model
from fused_mlp.models.program.evaluation import evaluate


@pytest.fixture
def state(small_module):
    return {name: tensor.detach() for name, tensor in small_module.state_dict().items()}


def test_versions_are_counted_up_and_broken_ones_are_not_overwritten(small_mlp, tmp_path):
    models.save(small_mlp, tmp_path / "source")
    root = tmp_path / "repository"
    assert import_model(tmp_path / "source", root, "m").version == 1
    (root / "m" / "5").mkdir()
    (root / "m" / "5" / "model.json").write_text("broken")
    imported = import_model(tmp_path / "source", root, "m")
    assert (imported.version, imported.path, imported.format) == (6, root / "m" / "6", "fused-mlp")
    assert import_model(tmp_path / "source", root, "m", 3).version == 3
    with pytest.raises(ModelLoadError, match="exists already"):
        import_model(tmp_path / "source", root, "m", 3)
    assert [v.version for v in Repository(root).find("m").usable] == [1, 3, 6]


def test_imports_at_the_same_moment_get_versions_of_their_own(small_mlp, tmp_path):
    models.save(small_mlp, tmp_path / "source")
    start, versions = threading.Barrier(4), []

    def run():
        start.wait()
        versions.append(import_model(tmp_path / "source", tmp_path / "r", "m").version)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.bin", "m.ckpt", "m.safetensors", "m", "w"])
def test_checkpoints_are_recognised_by_name_or_content(name, state, small_module, tmp_path):
    path = tmp_path / name
    if name in ("m.safetensors", "w"):
        save_file(state, path)
    else:
        torch.save(state, path)
    imported = import_model(path, tmp_path / "r", "m", activation="relu", output_activation="softmax")
    mlp = Repository(tmp_path / "r").load("m")
    x = torch.randn(4, 5)
    torch.testing.assert_close(mlp.to_torch()(x), small_module(x).detach())
    assert mlp.source == f"imported from {name}"
    assert imported.mlp.spec == mlp.spec


def test_a_block_of_a_checkpoint_directory_with_words_around_it(tmp_path):
    block = {f"model.layers.1.mlp.{name}_proj.weight": torch.randn(4, 4) for name in ("gate", "up", "down")}
    (tmp_path / "checkpoint").mkdir()
    save_file(block, tmp_path / "checkpoint" / "model.safetensors")
    import_model(
        tmp_path / "checkpoint", tmp_path / "r", "ffn", prefix="model.layers.1.mlp", activation="silu",
        dtype="bfloat16", labels=["a", "b", "c", "d"], description="a block", example=[0, 1, 2, 3],
    )  # fmt: skip
    mlp = Repository(tmp_path / "r").load("ffn")
    assert (mlp.spec.dtype, mlp.spec.labels, mlp.spec.description) == ("bfloat16", tuple("abcd"), "a block")
    assert mlp.example == (0, 1, 2, 3)
    assert mlp.source == "imported from checkpoint, model.layers.1.mlp"


def test_a_version_directory_keeps_its_words_and_may_change_dtype(small_mlp, tmp_path):
    models.save(small_mlp.annotated(source="trained", example=[1] * 5), tmp_path / "s")
    mlp = import_model(tmp_path / "s", tmp_path / "r", "m", dtype="float16").mlp
    assert (mlp.source, mlp.example, mlp.spec.dtype) == ("trained", (1,) * 5, "float16")


def test_what_is_missing_or_of_no_use_is_said(state, small_mlp, tmp_path):
    torch.save(state, tmp_path / "m.pt")
    models.save(small_mlp, tmp_path / "ours")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("just some notes")
    root = tmp_path / "r"
    for source, options, text in (
        ("m.pt", {}, "holds no activations; say which one"),
        ("ours", {"activation": "relu", "prefix": "x"}, r"activation=\.\.\., prefix=\.\.\.: of no use here"),
        ("ours", {"output_activation": "softmax"}, r"output_activation=\.\.\.: of no use here"),
        ("ours", {"name_map": {"a": "b"}}, r"name_map=\.\.\.: of no use here"),
        ("ours", {"negative_slope": 0.2}, r"negative_slope=\.\.\.: of no use here"),
        ("ours", {"row_shape": (5,)}, r"row_shape=\.\.\.: of no use here"),
        ("m.pt", {"activation": "relu", "row_shape": (5,)}, r"row_shape=\.\.\.: of no use here"),
        ("ours", {"labels": ["one"]}, "1 labels for 3 outputs"),
        ("ours", {"example": [1.0]}, "example: expected 5 values, got 1"),
        ("ours", {"version": 0}, "version: expected 1 or more, got 0"),
        ("absent", {}, "no such file or directory"),
        ("empty", {}, "expected model.json or safetensors files"),
        ("notes.txt", {}, "not recognised; expected"),
        ("m.pt", {"activation": "swoosh"}, "swoosh|activation"),
    ):
        with pytest.raises(ModelLoadError, match=text):
            import_model(tmp_path / source, root, "m", **options)
    with pytest.raises(ModelLoadError, match="model name"):
        import_model(tmp_path / "ours", root, "../m")
    assert not root.exists()


def test_a_module_in_a_pt_file_is_refused(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt")
    with pytest.raises(ModelLoadError, match="Python objects"):
        import_model(tmp_path / "m.pt", tmp_path / "r", "m", activation="relu")


def test_a_version_that_does_not_reproduce_given_outputs_is_not_written(small_mlp, tmp_path):
    source, repository = tmp_path / "source", tmp_path / "repository"
    models.save(small_mlp, source)
    x = np.random.default_rng(0).normal(size=(6, small_mlp.spec.in_features))
    y = evaluate(small_mlp, x)
    wrong = y.copy()
    wrong[4, 1] += 1e-3 * np.abs(y[4]).max()
    with pytest.raises(ModelLoadError, match="check: 1 of 6 rows are not reproduced: row 4, output 1 is"):
        import_model(source, repository, "net", check=(x, wrong))
    with pytest.raises(ModelLoadError, match=r"check: expected their outputs as \(6, "):
        import_model(source, repository, "net", check=(x, y[:5]))
    with pytest.raises(ModelLoadError, match=r"check: expected rows as \(6, "):
        import_model(source, repository, "net", check=(x[:, 1:], y))
    assert not repository.exists()
    assert import_model(source, repository, "net", check=(x, y.astype(np.float32))).version == 1
    # Weights in fewer bits are held to their own bound.
    assert import_model(source, repository, "net", precision="int8", check=(x, y), max_error=0.2).version == 2
    with pytest.raises(ModelLoadError, match=r"check: .* of 6 rows are not reproduced"):
        import_model(source, repository, "net", precision="int8", check=(x, -y))
