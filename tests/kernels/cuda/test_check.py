"""`python -m fused_mlp.kernels.cuda.check`: real machine code for every architecture, on a machine without a GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fused_mlp.kernels.cuda.architectures import ARCHITECTURES
from fused_mlp.kernels.cuda.check_jobs import jobs

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is not installed: pip install '.[cuda-check]'",
    ),
    pytest.mark.timeout(600),  # one subprocess does the work of the whole module
]


def test_quick_check_passes_on_every_architecture(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "fused_mlp.kernels.cuda.check", "--quick", "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(report.read_text())
    assert {entry["arch"] for entry in found["kernels"]} == {entry.name for entry in ARCHITECTURES}
    for entry in found["kernels"]:
        assert entry["registers"] > 0
        assert entry["spilled_bytes"] == 0
        if entry["precision"] == "bfloat16":
            # BF16 is in the name of the instruction, except of sm_100's, which has none.
            assert any("BF16" in name or name.startswith("UTC") for name in entry["tensor_core_instructions"])
        if entry["precision"] in ("float16", "tf32"):
            assert entry["tensor_core_instructions"]
    assert "64-128-128-10 relu+softmax" in done.stdout


def test_spill_shared_memory_and_missing_tensor_cores_are_faults() -> None:
    from fused_mlp.kernels.cuda.check import faults_of
    from fused_mlp.kernels.cuda.compilation import Resources

    job = next(job for job in jobs() if job.capability == 86 and job.precision == "bfloat16")
    good = Resources(registers=80, shared_bytes=99 * 1024, tensor_core_instructions={"HMMA": 4})
    assert faults_of(job, good) == []
    assert faults_of(job, replace(good, spilled_bytes=4)) == ["spills 4 bytes"]
    assert faults_of(job, replace(good, shared_bytes=99 * 1024 + 1)) == [
        "needs 101377 bytes of shared memory, 101376 allowed"
    ]
    assert faults_of(job, replace(good, tensor_core_instructions={})) == ["has no tensor-core instruction"]
    assert faults_of(job, Resources(error="ptxas failed")) == ["does not compile: ptxas failed"]


def test_tile_that_spills_makes_the_check_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fused_mlp.kernels.cuda import check

    # Half of the registers that it takes.
    job = next(job for job in jobs() if job.width == 32 and job.use == "gated")
    spilling = replace(job, plan=replace(job.plan, registers=32))
    monkeypatch.setattr(check, "jobs", lambda quick: [spilling])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert check.main(["--json", str(tmp_path / "report.json"), "--processes", "1"]) == 1
    assert "spills" in capsys.readouterr().out
