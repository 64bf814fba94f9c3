# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels, executed on the CPU by Triton's interpreter. In a process of their own: the switch is
read when a kernel is defined. fp32 and fp16 only: the interpreter's bf16 product is known to be wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("interpreted.py")

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is not installed: pip install '.[cuda-check]'",
    ),
    pytest.mark.timeout(600),  # one subprocess does the work of the whole module
]


DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Run:
    process: subprocess.Popen[bytes]
    output: Path  # a file, not a pipe: it takes all lines while nobody reads
    errors: Path


def start(folder: Path, dtype: str, *cases_of_a_group: str) -> Run:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # Eager is what infinities are compared with, and oneDNN's gelu for AVX-512 makes NaN of them.
    environment["DNNL_MAX_CPU_ISA"] = "AVX2"
    output, errors = folder / f"{dtype}.jsonl", folder / f"{dtype}.log"
    with output.open("wb") as out, errors.open("wb") as log:
        # Overflow and NaN are among the cases, and numpy warns of each.
        command = [sys.executable, "-W", "ignore::RuntimeWarning", str(SCRIPT), dtype, *cases_of_a_group]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=log)
    return Run(process, output, errors)


def finish(run: Run) -> list[dict[str, object]]:
    assert run.process.wait() == 0, run.errors.read_text()[-3000:]
    return [json.loads(line) for line in run.output.read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """One process for every case of a dtype (starting one costs more than most cases), side by side."""
    folder = tmp_path_factory.mktemp("interpreter")
    started = {dtype: start(folder, dtype) for dtype in DTYPES}
    yield started
    for run in started.values():
        run.process.kill()
        run.process.wait()


@pytest.fixture(scope="module", params=DTYPES)
def results(request: pytest.FixtureRequest, runs: dict[str, Run]) -> list[dict[str, object]]:
    return finish(runs[request.param])


GROUPS = [
    ("widths", 30),
    ("depths", 23),
    ("batches", 60),
    ("activations", 100),
    ("formulas", 72),
    ("idioms", 36),
    ("programs", 80),
    ("rankers", 20),
    ("invariance", 26),
    ("poison", 38),
    ("minus_infinity", 24),
    ("launches", 4),
    ("long_sums", 4),
    ("served", 2),
]


@pytest.mark.gate
def test_one_case_of_each_group_agrees(tmp_path: Path) -> None:
    results = finish(start(tmp_path, "float32", "1"))
    assert {result["group"] for result in results} == {group for group, _ in GROUPS}
    assert [result for result in results if not result["ok"]] == []


@pytest.mark.parametrize(("group", "at_least"), GROUPS)
def test_kernels_agree_with_float64_and_with_themselves(
    results: list[dict[str, object]], group: str, at_least: int
) -> None:
    mine = [result for result in results if result["group"] == group]
    assert len(mine) >= at_least
    assert [result for result in mine if not result["ok"]] == []
