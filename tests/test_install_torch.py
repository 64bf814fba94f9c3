# SPDX-License-Identifier: Apache-2.0
"""`scripts/install-torch` takes PyTorch's CPU build where there is no GPU, and the default index where it must."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu"
TORCH = next(
    line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
)
# Notes each installation. Only `pip index` and the test for CUDA have a result of their own.
PYTHON = """#!/bin/sh
case "$*" in
  *"pip index"*) exit $INDEX ;;
  *"pip install"*) echo "$*" >>"$NOTES" ;;
  *) exit $CUDA ;;
esac
"""


class Run:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._python = folder / "python"
        self._python.write_text(PYTHON)
        self._python.chmod(0o755)

    def __call__(
        self, torch: str | None, *, answers: bool = True, gpu: bool = False, cuda: bool = True
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """What the script did and said, and the source of each package that it installed."""
        if gpu:
            (self._folder / "nvidia-smi").symlink_to("/bin/true")
        notes = self._folder / "notes"
        notes.write_text("")
        environment = {
            "PATH": f"{self._folder}:{os.environ['PATH']}",
            "NOTES": str(notes),
            "INDEX": str(int(not answers)),
            "CUDA": str(int(not cuda)),
        }
        done = subprocess.run(
            ["scripts/install-torch", str(self._python)],
            cwd=ROOT,
            env=environment | ({} if torch is None else {"TORCH": torch}),
            capture_output=True,
            text=True,
        )
        lines = notes.read_text().splitlines()
        assert all(line.endswith(TORCH) for line in lines), "another version could bring another build"
        return done, ["cpu" if CPU_INDEX in line else "default" for line in lines]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


needs_no_gpu = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")


@needs_no_gpu
def test_without_a_gpu_the_cpu_build_comes_first_and_its_dependencies_from_the_default_index(run):
    done, sources = run(None)
    assert (done.returncode, done.stdout, sources) == (0, "", ["cpu", "default"])


@needs_no_gpu
def test_an_index_that_does_not_answer_is_one_line_and_the_default_index_follows(run):
    done, sources = run(None, answers=False)
    assert (done.returncode, sources) == (0, ["default"])
    assert (
        done.stdout == "PyTorch's index of CPU builds does not answer: torch comes from the default index\n"
    )


def test_with_a_gpu_the_default_index_is_asked(run):
    assert run(None, gpu=True)[1] == ["default"]


@pytest.mark.parametrize(
    ("torch", "sources"), [("cpu", ["cpu", "default"]), ("cuda", ["default"]), ("default", ["default"])]
)
def test_the_build_can_be_chosen(run, torch, sources):
    done, used = run(torch)
    assert (done.returncode, done.stdout, used) == (0, "", sources)


def test_a_build_without_cuda_is_refused_where_cuda_was_asked_for(run):
    done, _ = run("cuda", cuda=False)
    assert done.returncode == 1
    assert done.stderr == f"TORCH=cuda: the default index has a build of {TORCH} without CUDA\n"


def test_another_word_is_one_line(run):
    done, sources = run("rocm")
    assert (done.returncode, done.stderr, sources) == (
        1,
        "TORCH: expected cpu, cuda or default, got rocm\n",
        [],
    )
