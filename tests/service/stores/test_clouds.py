# SPDX-License-Identifier: Apache-2.0
"""`gs://` against an emulator, `hf://` against a stand-in for the hub."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fused_mlp import models
from fused_mlp.models import Repository
from tests.support.fleet import tiny_mlp
from tests.support.foreign_clients import install_stores
from tests.support.server import free_port


@pytest.mark.parametrize("kind", ["gs", "hf"])
def test_a_repository_in_another_store_is_mirrored(tmp_path: Path, kind: str) -> None:
    models.save(tiny_mlp(), tmp_path / "local" / "tiny" / "1")
    program = Path(__file__).with_name("cloud_case.py")
    arguments = [install_stores(), kind, tmp_path / "local", tmp_path / "cache", free_port()]
    run = subprocess.run(
        [sys.executable, program, *map(str, arguments)], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    first, second, folder = run.stdout.splitlines()
    assert first.endswith("] []"), run.stdout
    assert second == first  # it is fetched once
    assert Repository(folder).load("tiny").spec == tiny_mlp().spec
