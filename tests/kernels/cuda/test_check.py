"""`python -m fused_mlp.kernels.cuda.check`: real machine code for every architecture, on a machine without a GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fused_mlp.kernels.cuda.check.jobs import jobs
from fused_mlp.kernels.cuda.check.models import Sketch
from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES
from fused_mlp.kernels.cuda.planning.plans import LaunchPlan
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


class Device:
    """What Triton's launcher asks of a GPU before it compiles for it."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 80, 32)


def test_launcher_compiles_programs_and_finds_them_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The check hands plans to the compiler itself; here they go the way that they take on a GPU, up to the launch."""
    from triton.runtime.driver import driver

    from fused_mlp.kernels.cuda.running import triton_programs

    monkeypatch.setattr(driver, "_active", Device())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launched: list[object] = []

    def launch(plan: LaunchPlan, options: dict[str, int | None], rows: int, *arguments: object) -> int:
        kernel = triton_programs.KERNELS[plan.kernel]
        launched.append(kernel.warmup(*arguments, **plan.constants, **options, grid=(plan.grid(rows),)))
        return 0

    monkeypatch.setattr(triton_programs, "launch", launch)
    sketch = Sketch(20, "float16")
    h = sketch.combine("add", sketch.linear(sketch.norm("input", "layer"), 20, "quick_gelu"), "input")
    mlp = make_mlp(sketch.spec(output=sketch.linear(h, 3, "softmax")))
    for tile in candidate_tiles(mlp.spec, ARCHITECTURES[0]):
        if tile.block_m == 16:
            kind = (
                triton_programs.WholeProgram if tile.strategy == "whole" else triton_programs.LayeredProgram
            )
            program = kind(mlp, tile, torch.device("cpu"))
            workspace = program.workspace(5, lambda shape, dtype: torch.empty(shape, dtype=dtype))
            for _ in range(2):
                program.enqueue(torch.empty(5, 20), torch.empty(5, 3), 5, workspace)
    assert len(launched) == 2 * (1 + 3)
    assert len({id(kernel) for kernel in launched}) == 1 + 3


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

    class Kernel:
        """Launched as Triton's are, which return what they compiled."""

        def __getitem__(self, grid: tuple[int]) -> Kernel:
            return self

        def __call__(self, *arguments: object, maxnreg: int | None, **named: object) -> SimpleNamespace:
            asked.append(maxnreg)
            return SimpleNamespace(n_spills=spilled[maxnreg])

    monkeypatch.setitem(triton_programs.KERNELS, "whole", Kernel())
    plan = next(job.plan for job in jobs() if job.plan.kernel == "whole")
    launch = triton_programs.Launcher(plan)
    launch(16)
    assert asked == tried
    launch(16)
    launch(32)
    assert asked == [*tried, kept, kept]
