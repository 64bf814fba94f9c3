# SPDX-License-Identifier: Apache-2.0
"""The hash beside the weights of a version."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fused_mlp import models
from fused_mlp.models import ModelLoadError, Repository
from fused_mlp.models.repository.checksums import sum_line, sum_path
from tests.support.fleet import tiny_mlp


@pytest.fixture
def version(tmp_path: Path) -> Path:
    models.save(tiny_mlp(), tmp_path / "tiny" / "1")
    return tmp_path / "tiny" / "1"


def read(version: Path) -> object:
    return Repository(version.parents[1]).load("tiny")


def test_the_hash_is_as_sha256sum_checks_it(version: Path) -> None:
    subprocess.run(
        ["sha256sum", "--check", "--strict", "model.safetensors.sha256"],
        cwd=version,
        check=True,
        capture_output=True,
    )
    assert read(version)


def test_weights_with_another_hash_are_not_read(version: Path) -> None:
    weights = version / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(ModelLoadError, match=r"expected SHA-256 .* the file is damaged or not complete"):
        read(version)


def test_a_hash_that_cannot_be_read_is_not_passed_over(version: Path) -> None:
    (version / "model.safetensors.sha256").write_text("soon\n")
    with pytest.raises(ModelLoadError, match="expected 64 hexadecimal digits"):
        read(version)


def test_weights_without_a_hash_are_read(version: Path) -> None:
    (version / "model.safetensors.sha256").unlink()
    assert read(version)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A version of two shards as other tools write them, with their hashes."""
    folder = tmp_path / "tiny" / "1"
    folder.mkdir(parents=True)
    names = {}
    for number, width in enumerate((3, 2)):
        shard = folder / f"model-{number}.safetensors"
        save_file({f"{number}.weight": np.ones((width, 3), np.float32)}, shard)
        sum_path(shard).write_bytes(sum_line(shard))
        names[f"{number}.weight"] = shard.name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "model.json").write_text('{"format": "safetensors/1", "activation": "relu"}')
    return folder


def test_shards_with_another_hash_are_not_read(shards: Path) -> None:
    assert read(shards)
    weights = shards / "model-1.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(ModelLoadError, match=r"model-1.safetensors: expected SHA-256 .* the file is damaged"):
        read(shards)


def test_a_version_of_shards_is_complete_when_all_have_their_hashes(shards: Path) -> None:
    repository = Repository(shards.parents[1])
    assert repository.is_whole("tiny", 1)
    sum_path(shards / "model-1.safetensors").unlink()
    assert not repository.is_whole("tiny", 1)
