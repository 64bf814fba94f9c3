# SPDX-License-Identifier: Apache-2.0
"""The hash beside the weights of a version."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fused_mlp import models
from fused_mlp.models import ModelLoadError, Repository
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
