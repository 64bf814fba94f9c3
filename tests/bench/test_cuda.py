# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark where there is no GPU: what it says then, what it measures (on doubles of the device), and
how it reports given timings."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from bench.cuda import __main__ as cuda
from bench.cuda import engines as cuda_engines
from bench.cuda import gpu_report
from bench.cuda.report import PEERS, markdown_table, show, summary
from bench.kernels.shapes import SHAPES
from fused_mlp.kernels.backends.eager import EagerKernel
from fused_mlp.kernels.cuda.running.selection import Candidate
from fused_mlp.models import Mlp
from tests.kernels.cuda.cpu_runtime import CpuRuntime
from tests.kernels.cuda.eager_program import EagerProgram

ROOT = Path(__file__).parents[2]


def cell(rows: int, whole: float, eager: float, compiled: float, **more: Any) -> dict[str, Any]:
    return {
        "shape": "64-128-128-10 relu",
        "dtype": "float16",
        "rows": rows,
        "chosen": "whole/16",
        "device_us": {
            "whole/16": whole,
            "cublas": 9.0,
            "eager": eager,
            "torch.compile": 20.0,
            "torch.compile, graphs": compiled,
        },
        "served_us": {"fused": 20.0, "unfused": 50.0},
        "failed": {},
        **more,
    }


RESULT = {
    "gpu": {"name": "NVIDIA A100", "capability": "sm_80"},
    "cells": [cell(1, 5.0, 40.0, 10.0), cell(1024, 20.0, 40.0, 15.0)],
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about machines without a GPU")
def test_without_a_gpu_it_ends_with_one_line_that_says_what_to_do() -> None:
    command = [sys.executable, "-m", "bench.cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        f"bench.cuda: expected a GPU, but torch {torch.__version__} sees no CUDA device: run"
    )


def test_table_marks_what_serves_and_compares_it_with_eager_and_the_best() -> None:
    text = io.StringIO()
    show(Console(file=text, width=220), RESULT)
    lines = [line for line in text.getvalue().splitlines() if "64-128" in line]
    assert "NVIDIA A100 (sm_80)" in text.getvalue()
    assert [column.strip() for column in lines[0].split("│")[1:-1]] == [
        "64-128-128-10 relu", "float16", "1", "whole/16* 5.0  cublas 9.0", "40.0", "20.0", "10.0",
        "8.00x", "2.00x", "20.0", "50.0",
    ]  # fmt: skip
    assert "0.75x" in lines[1]


def test_summary_owns_up_to_lost_points_and_to_better_strategies() -> None:
    assert summary(RESULT) == [
        "float16, geometric mean over 2 points: 4.00x eager, 1.22x the best of all; as served, copies included, "
        "2.50x unfused",
        "slower than the best of the others at 1 of 2 points; 64-128-128-10 relu float16 1024 rows 0.75x",
        "64-128-128-10 relu float16 1024 rows: cublas would be 2.22x as fast as whole/16, which serves",
    ]


def test_engine_that_failed_is_named_and_leaves_the_rest_of_the_report_standing() -> None:
    broken = cell(1, 5.0, 40.0, 10.0, failed={"whole/16": "OutOfMemoryError: no room"})
    del broken["device_us"]["whole/16"]
    result = {**RESULT, "cells": [*RESULT["cells"], broken]}
    text = io.StringIO()
    show(Console(file=text, width=220), result)
    assert "nan" not in text.getvalue()
    assert "| - |" in markdown_table(result).replace("**", "")
    assert "64-128-128-10 relu float16 1 rows: whole/16 is out: OutOfMemoryError: no room" in summary(result)
    assert summary(result)[0].startswith("float16, geometric mean over 3 points: 4.00x eager")


def test_markdown_has_the_serving_strategy_in_front() -> None:
    head, _, first, _ = markdown_table(RESULT).splitlines()
    assert head == (
        "| shape | dtype | rows | **fused** | eager | torch.compile | torch.compile, graphs | vs eager | "
        "vs best other |"
    )
    assert first == "| 64-128-128-10 relu | float16 | 1 | **5.0** | 40.0 | 20.0 | 10.0 | 8.00x | 2.00x |"


def test_plan_has_every_shape_and_dtype_and_the_large_batch_once() -> None:
    work = cuda.plan(cuda._arguments([]))
    assert len(work) == len(SHAPES) * 3
    large = [(shape, dtype) for shape, dtype, rows in work if 8192 in rows]
    assert large == [("GeGLU 768-3072-768", "bfloat16")]


def test_it_measures_every_candidate_and_peer_and_writes_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On doubles: eager programs for the strategies, a clock that stands still, no compiler."""

    def found(mlp: Mlp) -> tuple[CpuRuntime, list[Candidate]]:
        def fail() -> EagerProgram:
            raise RuntimeError("out of resource\nwith a long story")

        return CpuRuntime(), [
            Candidate("layer_by_layer", lambda: EagerProgram(mlp)),
            Candidate("wrong", lambda: EagerProgram(mlp, spoil=lambda y, rows: y + 1)),
            Candidate("broken", fail),
        ]

    def seconds(call: Any) -> float:
        call()
        return 2e-6

    monkeypatch.setattr(cuda_engines, "DEVICE", "cpu")
    monkeypatch.setattr(cuda_engines, "candidates", found)
    monkeypatch.setattr(cuda_engines, "device_seconds", seconds)
    monkeypatch.setattr(cuda_engines, "wall_seconds", seconds)
    monkeypatch.setattr(gpu_report, "describe_gpu", lambda: {"name": "none", "capability": "sm_0"})
    monkeypatch.setattr(cuda_engines.kernels, "compile", lambda mlp, **options: EagerKernel(mlp, "cpu", None))
    monkeypatch.setattr(cuda_engines, "compiled", lambda module: (module, module))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    output, report = tmp_path / "new" / "cuda.json", tmp_path / "report.json"
    report.write_text('{"tests": "as they were"}')
    chosen = ["--shapes", "64-128-128-10 relu", "--dtypes", "float32", "--rows", "1", "3"]
    cuda.main([*chosen, "--output", str(output), "--add-to", str(report)])
    written = json.loads(output.read_text())
    assert json.loads(report.read_text()) == {"tests": "as they were", "bench": written}
    assert {"machine", "gpu", "versions", "commit", "command", "date", "tf32"} < set(written)
    assert [entry["rows"] for entry in written["cells"]] == [1, 3]
    first = written["cells"][0]
    assert first["chosen"] == "layer_by_layer"
    assert first["device_us"] == pytest.approx({"layer_by_layer": 1.0} | dict.fromkeys(PEERS, 2.0))
    assert first["served_us"] == pytest.approx({"fused": 2.0, "unfused": 2.0})
    assert set(first["failed"]) == {"wrong", "broken"}
    assert first["failed"]["broken"] == "RuntimeError: out of resource"
    capsys.readouterr()
    cuda.main(["--report", "--markdown", "--output", str(output)])
    assert (
        "| 64-128-128-10 relu | float32 | 1 | **1.0** | 2.0 | 2.0 | 2.0 | 2.00x | 2.00x |"
        in capsys.readouterr().out
    )


TESTS = """
import pytest

def test_right(record_property):
    print("found 7")
    record_property("speed", ["fast"])

def test_wrong():
    assert 1 == 2

@pytest.mark.skip(reason="no second GPU")
def test_other(): ...
"""


def test_a_report_to_be_sent_back_has_the_machine_and_every_test(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    report = tmp_path / "new" / "report.json"
    command = [
        sys.executable,
        "-m",
        "bench.cuda.gpu_report",
        "--output",
        str(report),
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert f"tests written to {report}: please send it back" in done.stdout
    part = json.loads(report.read_text())["tests"]
    assert {"machine", "gpu", "versions", "commit", "command", "date"} < set(part)
    assert part["versions"]["torch"] == torch.__version__
    right, wrong, other = part["results"]
    assert (
        right.items() >= {"outcome": "passed", "printed": "found 7\n", "speed": ["fast"], "why": ""}.items()
    )
    assert (wrong["outcome"], other["outcome"]) == ("failed", "skipped")
    assert "assert 1 == 2" in wrong["why"]
    assert "no second GPU" in other["why"]


def test_the_launchers_own_cost_is_measured_without_a_gpu(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "bench.cuda.launcher",
        "--rows",
        "1",
        "--output",
        str(tmp_path / "cost.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads((tmp_path / "cost.json").read_text())["cells"]
    assert 0 < cell["native_us"] < cell["python_us"]
