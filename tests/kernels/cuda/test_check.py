# SPDX-License-Identifier: Apache-2.0
"""`python -m fused_mlp.kernels.cuda.check`: real machine code for every architecture, on a machine without a GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fused_mlp.kernels.cuda.check.jobs import jobs
from fused_mlp.kernels.cuda.check.models import Sketch
from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles
from tests.kernels.cuda.random_models import make_mlp

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
        assert entry["faults"] == []  # such as a product without tensor cores
        if entry["precision"] == "bfloat16" and entry["tensor_core_instructions"]:
            # The type is in the name of the instruction, except of sm_100's, which has none.
            names = entry["tensor_core_instructions"]
            assert any(".bf16" in name or name.startswith("tcgen05") for name in names)
    assert "64-128-128-10 relu+softmax" in done.stdout


def test_spill_shared_memory_and_missing_tensor_cores_are_faults() -> None:
    from fused_mlp.kernels.cuda.check.compilation import Resources
    from fused_mlp.kernels.cuda.check.run import faults_of

    job = next(job for job in jobs() if job.capability == 86 and job.precision == "bfloat16")
    good = Resources(registers=80, shared_bytes=99 * 1024, tensor_core_instructions={"mma.sync": 4})
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
    from fused_mlp.kernels.cuda.check import run as check

    # Half of the registers that it takes.
    job = next(job for job in jobs() if job.width == 32 and job.use == "gated")
    spilling = replace(job, plan=replace(job.plan, registers=(32, 40)))
    monkeypatch.setattr(check, "jobs", lambda quick: [spilling])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert check.main(["--json", str(tmp_path / "report.json"), "--processes", "1"]) == 1
    assert "spills" in capsys.readouterr().out


class Recorded:
    """A compiled kernel, launched on a GPU of which only the architecture is there."""

    def __init__(self, compiled: object, spilled: int, launches: list[tuple[object, ...]]) -> None:
        self.compiled, self.n_spills, self._launches = compiled, spilled, launches

    def _init_handles(self) -> None:
        pass

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments: self._launches.append((self.compiled, grid, arguments))


def test_programs_launch_what_the_check_compiles_and_compile_it_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Up to the launch, the way that they take on a GPU."""
    from fused_mlp.kernels.cuda.device.compiling import compile_plan
    from fused_mlp.kernels.cuda.running import triton_programs

    launches: list[tuple[object, ...]] = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(
        triton_programs,
        "compile_plan",
        lambda plan, options, capability: Recorded(compile_plan(plan, options, capability), 0, launches),
    )
    sketch = Sketch(20, "float16")
    h = sketch.combine("add", sketch.linear(sketch.norm("input", "layer"), 20, "quick_gelu"), "input")
    mlp = make_mlp(sketch.spec(output=sketch.linear(h, 3, "softmax")))
    for tile in candidate_tiles(mlp.spec, ARCHITECTURES[0]):
        if tile.block_m == 16:
            program = triton_programs.TritonProgram(mlp, tile, torch.device("cpu"))
            workspace = program.workspace(5, lambda shape, dtype: torch.empty(shape, dtype=dtype))
            for _ in range(2):
                program.enqueue(torch.empty(5, 20), torch.empty(5, 3), 5, workspace)
    assert len(launches) == 2 * (1 + 3)
    assert len({id(compiled) for compiled, _, _ in launches}) == 1 + 3
    for compiled, grid, arguments in launches:
        parameters = compiled.src.fn.arg_names
        assert len(arguments) == len(parameters)
        assert len(grid) == 3
        for name, argument in zip(parameters, arguments, strict=True):
            kind = Tensor if name.endswith("_ptr") else int if name == "rows" else type(None)
            assert isinstance(argument, kind), name


@pytest.mark.parametrize(
    ("spilled", "tried", "kept"),
    [
        ({255: 0, None: 7}, [255], 255),
        ({255: 7, None: 0}, [255, None], None),
        ({255: 7, None: 9}, [255, None], 255),
        ({255: 7, None: 7}, [255, None], 255),
    ],
)
def test_launcher_keeps_the_options_with_which_a_kernel_spills_least(
    monkeypatch: pytest.MonkeyPatch, spilled: dict[int | None, int], tried: list[int | None], kept: int | None
) -> None:
    from fused_mlp.kernels.cuda.running import triton_programs

    asked: list[int | None] = []
    launches: list[tuple[object, ...]] = []

    def compile_plan(plan: object, options: dict[str, int | None], capability: int) -> Recorded:
        asked.append(options["maxnreg"])
        return Recorded(options["maxnreg"], spilled[options["maxnreg"]], launches)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(triton_programs, "compile_plan", compile_plan)
    plan = next(job.plan for job in jobs() if job.plan.kernel == "whole")
    binary = triton_programs.Binary(plan, torch.device("cpu"))
    for rows in (16, 32, 0):
        binary.launch(rows)
    assert asked == tried
    assert [launch[:2] for launch in launches] == [(kept, (plan.grid(rows), 1, 1)) for rows in (16, 32)]
