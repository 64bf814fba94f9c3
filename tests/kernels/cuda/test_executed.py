# SPDX-License-Identifier: Apache-2.0
"""The compiled kernels, executed: what Triton makes of every strategy for sm_80, sm_90, sm_100 and sm_120, run on
the CPU by our interpreter of PTX in all precisions. A sample here; `make check-ptx` runs all cases."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("executed.py")
EVERY = int(os.environ.get("FUSED_MLP_PTX_EVERY", "60"))  # one case in so many: one per architecture
PRECISIONS = ("float16", "bfloat16", "tf32", "float32")
SIDE_BY_SIDE = 2

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is not installed: pip install '.[cuda-check]'",
    ),
    pytest.mark.timeout(3600 if EVERY <= 2 else 600),  # one fixture does the work of the whole module
]


@pytest.fixture(scope="module")
def results() -> dict[str, list[dict[str, object]]]:
    """A process per precision, two side by side."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return dict(zip(PRECISIONS, pool.map(execute, PRECISIONS), strict=True))


def execute(precision: str) -> list[dict[str, object]]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TRITON_DISABLE_LINE_INFO": "1",
    }
    environment["DNNL_MAX_CPU_ISA"] = "AVX2"  # oneDNN's gelu for AVX-512 makes NaN of infinities
    # Overflow and NaN are among the cases, and numpy warns of each.
    command = [sys.executable, "-W", "ignore::RuntimeWarning", str(SCRIPT), precision, str(EVERY)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_compiled_kernels_agree_with_float64(
    results: dict[str, list[dict[str, object]]], precision: str
) -> None:
    mine = results[precision]
    assert {result["sm"] for result in mine} == {80, 90, 100, 120}
    assert len(mine) >= 480 // EVERY
    assert [result for result in mine if not result["ok"]] == []
