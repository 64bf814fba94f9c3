# SPDX-License-Identifier: Apache-2.0
"""The native launcher from Python, on the fake driver, which runs the compiled PTX. In a process of its own: the driver
is loaded once per process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fused_mlp.kernels import KernelError, KernelInfo
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles
from fused_mlp.kernels.cuda.running import native, native_building
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support import fake_cuda

ROOT = Path(__file__).parents[3]

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    fail_file = tmp_path_factory.mktemp("fake") / "fail"
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.cuda.native_cases"],
        cwd=ROOT,
        env=os.environ | fake_cuda.environment(fail_file=fail_file, delay_us=0),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return {case["case"]: case for case in map(json.loads, done.stdout.splitlines())}


def test_the_compiled_kernel_answers_through_the_launcher(results: dict[str, dict[str, Any]]) -> None:
    found = results["whole"]
    assert max(found["errors"]) < 1e-5  # float32, sums of at most 7 products near one
    assert "triton on cuda" in found["info"]
    assert "strategy whole/16; chosen by rule, not timed" in found["info"]
    assert "launched natively" in found["info"]
    assert found["memory"] > 0
    assert found["has_capsule"]
    assert found["wrong shape"] == "expected x (rows, 5) and y (rows, 3), got (2, 5) and (2, 4)"


def test_gpus_are_counted_without_opening_them(results: dict[str, dict[str, Any]]) -> None:
    assert results["counted"] == {"case": "counted", "count": 2, "opened": 0}


@pytest.mark.parametrize("lost", [False, True])
def test_a_gpu_that_torch_loses_is_reported(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unspecified launch failure")

    reported: list[str] = []
    monkeypatch.setattr(native, "is_lost", lambda _: lost, raising=False)
    monkeypatch.setattr(
        native, "report_lost", lambda device, error: reported.append(f"{device}: {error}"), raising=False
    )
    info = KernelInfo("fused", "triton", "cuda:1", "whole/16", "sm_80", "float32", 1)
    compiled: Any = None
    kernel = native.NativeKernel(make_spec((5, 7, 3)), info, compiled, 0, fail)
    tensor: Any = SimpleNamespace(is_cuda=True, shape=(2, 5))
    with pytest.raises(KernelError, match="CUDA failed on a batch of 2 rows: unspecified launch failure"):
        kernel.forward_tensors(tensor, tensor)
    assert reported == (["cuda:1: unspecified launch failure"] if lost else [])


def test_every_gpu_of_the_driver_can_be_named(results: dict[str, dict[str, Any]]) -> None:
    found = results["second"]
    assert found["device"] == "cuda:1"
    assert found["error"] < 1e-5
    assert found["everywhere"] == ["cuda:0", "cuda:1"]
    assert found["third"] == "'cuda:2': device: expected 0 to 1, got 2"
    assert found["like"] == "whole/16"


def test_small_and_larger_batches_of_long_sums_take_their_own_launches(
    results: dict[str, dict[str, Any]],
) -> None:
    """The check at load has compared the bits of both."""
    assert max(results["split"]["errors"]) < 1e-4  # sums of 1100 products near one
    assert "strategy split/16" in results["split"]["info"]


def test_kernels_are_compiled_for_the_gpu_itself_not_for_the_nearest_in_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled_for: list[int] = []

    def compile_forward(forward: object, capability: int) -> list[object]:
        compiled_for.append(capability)
        raise KernelError("that was all")

    monkeypatch.setattr(native_building, "compile_forward", compile_forward)
    monkeypatch.setattr(native, "open_device", lambda ordinal: SimpleNamespace(capability=103))
    spec = make_spec((4, 2))
    architecture = native.architecture(0)
    assert architecture is not None
    assert architecture.capability == 100
    with pytest.raises(KernelError, match="that was all"):
        native_building.build_by_rule(
            make_mlp(spec), 0, architecture, candidate_tiles(spec, architecture)[:1]
        )
    assert compiled_for == [103]


def test_several_launches_with_a_buffer_between_them(results: dict[str, dict[str, Any]]) -> None:
    assert max(results["layered"]["errors"]) < 5e-3  # float16 has 11 bits


def test_what_torch_has_chosen_is_handed_over_and_cublas_stays_in_python(
    results: dict[str, dict[str, Any]],
) -> None:
    found = results["handed over"]
    assert found["error"] < 1e-5
    assert found["native"] == [True, False]
    assert found["reasons"] == [
        "the fastest; launched natively",
        "the fastest; launched from Python (it has no plan to hand over)",
    ]


def test_what_depends_on_the_batch_is_not_launched_natively(results: dict[str, dict[str, Any]]) -> None:
    """Of the launches that only the native launcher makes: mapped memory, graphs with copies, parts on two streams."""
    found = results["wavering"]
    refused = "the fastest; launched from Python (a row's result depends on the rows beside it)"
    steady = "the fastest; launched natively"
    assert found["reasons"] == {"33": refused, "200": refused, "1025": refused, "1026": steady}
    assert found["replayed"] == ["whole/16"]


def test_kernel_of_another_triton_is_left_to_it(results: dict[str, dict[str, Any]]) -> None:
    unnamed, dependent, longer = results["another triton"]["reasons"]
    assert "launched from Python (this version of Triton describes its kernels differently: " in unnamed
    assert "kernel whole_kernel needs more than its arguments: Triton launches it)" in dependent
    assert "kernel whole_kernel: expected 7 parameters, Triton declares 8)" in longer


def test_no_room_at_load_is_one_line_that_names_it(results: dict[str, dict[str, Any]]) -> None:
    assert "no room on the GPU for 0.0 MiB of weights" in results["no memory"]["message"]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in results["no memory"]["message"]


def test_a_failed_batch_leaves_the_kernel_usable(results: dict[str, dict[str, Any]]) -> None:
    found = results["one failure"]
    assert (
        "CUDA failed on a batch of 2 rows: cannot launch a kernel: CUDA_ERROR_LAUNCH_OUT_OF"
        in found["message"]
    )
    assert found["error"] < 1e-5
    assert not found["lost"]


def test_a_lost_device_is_reported_and_fails_every_batch(results: dict[str, dict[str, Any]]) -> None:
    found = results["lost"]
    assert "CUDA_ERROR_LAUNCH_FAILED" in found["message"]
    assert "cannot use the GPU any more, restart the process" in found["later"]
    assert found["lost"] == "cuda:0 is lost: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"
