"""The Triton kernels, executed on the CPU by Triton's interpreter. In a process of their own: the switch is
read when a kernel is defined. fp32 and fp16 only: the interpreter's bf16 product is known to be wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
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


@pytest.fixture(scope="module", params=["float32", "float16"])
def results(request: pytest.FixtureRequest) -> list[dict[str, object]]:
    """Every case of one dtype, in one process: starting one costs more than most cases."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), request.param]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("group", "at_least"),
    [
        ("widths", 30),
        ("depths", 23),
        ("batches", 60),
        ("activations", 100),
        ("invariance", 18),
        ("poison", 36),
        ("minus_infinity", 24),
        ("served", 2),
    ],
)
def test_kernels_agree_with_float64_and_with_themselves(
    results: list[dict[str, object]], group: str, at_least: int
) -> None:
    mine = [result for result in results if result["group"] == group]
    assert len(mine) >= at_least
    assert [result for result in mine if not result["ok"]] == []
