# SPDX-License-Identifier: Apache-2.0
"""What a save that was killed leaves behind, beside saves that go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fused_mlp.models import load, save
from tests.support.fleet import tiny_mlp

# Saves a version, and stands still with part of it written until a line comes.
SLOW_SAVE = """
import os, sys
from fused_mlp.models import save
from tests.support.fleet import tiny_mlp

fsync, waited = os.fsync, []

def wait(descriptor):
    fsync(descriptor)
    if not waited:
        waited.append(print("writing", flush=True))
        sys.stdin.readline()

os.fsync = wait
save(tiny_mlp(), sys.argv[1])
"""


@pytest.fixture
def writer(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_SAVE, tmp_path / "net" / "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process
        process.kill()


def drafts(root: Path) -> list[Path]:
    return list(root.glob("net/.*"))


def test_the_next_save_removes_the_draft_of_one_that_was_killed(
    tmp_path: Path, writer: subprocess.Popen[str]
) -> None:
    writer.kill()
    writer.wait()
    assert len(drafts(tmp_path)) == 1
    save(tiny_mlp(), tmp_path / "net" / "2")
    assert drafts(tmp_path) == []


def test_the_draft_of_a_save_that_goes_on_stays(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    save(tiny_mlp(), tmp_path / "net" / "2")
    assert len(drafts(tmp_path)) == 1
    writer.communicate("go on\n", timeout=30)
    assert writer.returncode == 0
    assert load(tmp_path / "net" / "1").spec == tiny_mlp().spec
    assert drafts(tmp_path) == []


def test_other_hidden_folders_stay(tmp_path: Path) -> None:
    kept = [tmp_path / "net" / name for name in (".git", ".draft", ".notes.draft", "draft")]
    for folder in kept:
        folder.mkdir(parents=True)
    save(tiny_mlp(), tmp_path / "net" / "1")
    assert all(folder.is_dir() for folder in kept)
