# SPDX-License-Identifier: Apache-2.0
"""The launcher on a double of the CUDA runtime: buckets, padding, static buffers, capture, re-entrancy."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fused_mlp.kernels import KernelError, KernelInfo, failure
from fused_mlp.kernels.cuda.running import contexts
from fused_mlp.kernels.cuda.running.contexts import BUCKETS, ContextPool, LaunchContext
from fused_mlp.kernels.cuda.running.kernel import CudaKernel
from fused_mlp.kernels.cuda.running.on_device import run_on_device
from fused_mlp.models import Mlp
from tests.kernels.cuda.cpu_runtime import CpuRuntime
from tests.kernels.cuda.eager_program import EagerProgram
from tests.kernels.cuda.random_models import make_mlp, make_spec

SPEC = make_spec((5, 7, 3))
INFO = KernelInfo("fused", "triton", "cuda", "eager", "sm_80", "float32", 1)
SMALL = (16, 32)  # quick to capture


def rows_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 5), dtype=np.float32)


def expected(mlp: Mlp, x: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return torch.cat([mlp.to_torch()(row[None]) for row in torch.from_numpy(x)]).numpy()


def kernel_over(program: EagerProgram, runtime: CpuRuntime, contexts: int = 1) -> CudaKernel:
    pool = ContextPool([LaunchContext(runtime, program, SPEC, SMALL) for _ in range(contexts)])
    return CudaKernel(SPEC, INFO, pool)


def run(kernel: CudaKernel, x: np.ndarray) -> np.ndarray:
    y = np.full((x.shape[0], 3), np.nan, np.float32)
    kernel.run(x, y)
    return y


@pytest.mark.parametrize(
    ("rows", "bucket"), [(1, 16), (16, 16), (17, 32), (65, 128), (1000, 1024), (1024, 1024)]
)
def test_batch_runs_in_the_smallest_bucket_that_holds_it(rows: int, bucket: int) -> None:
    context = LaunchContext(CpuRuntime(), EagerProgram(make_mlp(SPEC)), SPEC, BUCKETS)
    assert context.bucket(rows) == bucket


def test_rows_are_padded_to_the_bucket_and_results_cut_back() -> None:
    mlp = make_mlp(SPEC)
    program = EagerProgram(mlp)
    kernel = kernel_over(program, CpuRuntime())
    program.rows.clear()
    x = rows_of(17)
    np.testing.assert_array_equal(run(kernel, x), expected(mlp, x))
    assert program.rows == [32]


def test_batch_larger_than_every_bucket_is_launched_directly_in_two_parts() -> None:
    mlp = make_mlp(SPEC)
    program = EagerProgram(mlp)
    kernel = kernel_over(program, CpuRuntime())
    for rows in (33, 128 * 2 + 3, 300, 33):
        program.rows.clear()
        x = rows_of(rows)
        np.testing.assert_array_equal(run(kernel, x), expected(mlp, x))
        size = -(-rows // 256) * 128
        assert program.rows == [min(size, rows), rows - size][: 1 + (rows > size)]


def test_parts_of_a_large_batch_overlap_and_only_a_lane_that_is_needed_again_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contexts, "MAX_ROWS", 128)
    mlp, runtime = make_mlp(SPEC), CpuRuntime()
    program = EagerProgram(mlp, spoil=lambda y, rows: runtime.calls.append(f"launch {rows}") or y)
    kernel = kernel_over(program, runtime)
    x = rows_of(128 * 3 + 1)
    run(kernel, x)  # makes the buffers
    runtime.calls.clear()
    np.testing.assert_array_equal(run(kernel, x), expected(mlp, x))
    assert runtime.calls == [
        "launch 128", "launch 128", "wait", "launch 128", "wait", "launch 1", "wait", "wait",
    ]  # fmt: skip


def test_program_whose_bits_depend_on_the_rows_is_launched_with_those_of_a_bucket_only() -> None:
    mlp = make_mlp(SPEC)
    program = EagerProgram(mlp, any_rows=False)
    kernel = kernel_over(program, CpuRuntime())
    program.rows.clear()
    x = rows_of(32 * 2 + 3)
    np.testing.assert_array_equal(run(kernel, x), expected(mlp, x))
    assert program.rows == [32, 32, 16]


def test_failing_part_of_a_large_batch_leaves_nothing_for_the_next_batch() -> None:
    mlp = make_mlp(SPEC)
    calls = 0

    def spoil(y: torch.Tensor, rows: int) -> torch.Tensor:
        nonlocal calls
        calls += rows > 32
        if calls == 2:
            raise RuntimeError("launch failure")
        return y

    kernel = kernel_over(EagerProgram(mlp, spoil=spoil), CpuRuntime())
    first = np.full((300, 3), 7, np.float32)
    with pytest.raises(KernelError, match="batch of 300 rows: launch failure"):
        kernel.run(rows_of(300), first)
    assert (first == 7).all()
    x = rows_of(290, seed=5)
    np.testing.assert_array_equal(run(kernel, x), expected(mlp, x))
    assert (first == 7).all()


def test_kernel_made_in_inference_mode_runs_outside_of_it() -> None:
    mlp = make_mlp(SPEC)
    with torch.inference_mode():
        kernel = kernel_over(EagerProgram(mlp), CpuRuntime())
        run(kernel, rows_of(300))  # makes the buffers of large batches
    for rows in (3, 300):
        np.testing.assert_array_equal(run(kernel, rows_of(rows)), expected(mlp, rows_of(rows)))


def test_memory_is_that_of_weights_and_buffers() -> None:
    kernel = kernel_over(EagerProgram(make_mlp(SPEC)), CpuRuntime(), contexts=2)
    small = 100 + 2 * 32 * 4 * (5 + 3 + 3)  # the weights as the program says, x, y and its workspace
    assert kernel.memory_bytes == small
    run(kernel, rows_of(300))
    assert kernel.memory_bytes == small + 2 * 256 * 4 * (5 + 3 + 3)


@pytest.mark.usefixtures("forgotten_failures")
def test_lost_device_is_reported_once_and_other_errors_are_not() -> None:
    def spoil(y: torch.Tensor, rows: int) -> torch.Tensor:
        if failing:
            raise RuntimeError(failing)
        return y

    failing = ""
    runtime = CpuRuntime()
    kernel = kernel_over(EagerProgram(make_mlp(SPEC), spoil=spoil), runtime)
    told: list[str] = []
    stop = failure.listen(lambda: told.append(failure.failure()))
    failing = "CUDA out of memory"
    with pytest.raises(KernelError):
        run(kernel, rows_of(4))
    assert (failure.failure(), told) == ("", [])
    runtime.lost, failing = True, "CUDA error: an illegal memory access was encountered\nCompile with ..."
    for _ in range(2):
        with pytest.raises(KernelError):
            run(kernel, rows_of(4))
    stop()
    reason = "cpu is lost: CUDA error: an illegal memory access was encountered"
    assert (failure.failure(), told) == (reason, [reason])


@pytest.fixture
def forgotten_failures() -> Iterator[None]:
    yield
    failure._REASONS.clear()


def test_what_an_earlier_batch_left_in_the_buffers_never_shows() -> None:
    mlp = make_mlp(SPEC)
    kernel = kernel_over(EagerProgram(mlp), CpuRuntime())
    poison = np.full((32, 5), np.nan, np.float32)
    assert np.isnan(run(kernel, poison)).all()
    x = rows_of(3)
    np.testing.assert_array_equal(run(kernel, x), expected(mlp, x))


def test_graphs_are_captured_at_load_and_buffers_never_move() -> None:
    runtime = CpuRuntime()
    program = EagerProgram(make_mlp(SPEC))
    kernel = kernel_over(program, runtime)
    assert runtime.calls.count("capture") == len(SMALL)
    runtime.calls.clear()
    for rows in (1, 32, 16, 0):
        run(kernel, rows_of(rows))
    assert "capture" not in runtime.calls
    assert len(program.addresses) == 1


def test_batch_is_replayed_once_and_waited_for() -> None:
    runtime = CpuRuntime()
    kernel = kernel_over(EagerProgram(make_mlp(SPEC)), runtime)
    runtime.calls.clear()
    run(kernel, rows_of(31))
    assert runtime.calls == ["replay", "wait"]
    runtime.calls.clear()
    run(kernel, rows_of(0))
    assert runtime.calls == []


def test_new_model_version_gets_graphs_of_its_own_and_the_old_one_keeps_serving() -> None:
    runtime = CpuRuntime()
    first, second = make_mlp(SPEC, seed=1), make_mlp(SPEC, seed=2)
    x = rows_of(9)
    old = kernel_over(EagerProgram(first), runtime)
    np.testing.assert_array_equal(run(old, x), expected(first, x))
    runtime.calls.clear()
    new = kernel_over(EagerProgram(second), runtime)
    assert runtime.calls.count("capture") == len(SMALL)
    np.testing.assert_array_equal(run(new, x), expected(second, x))
    np.testing.assert_array_equal(run(old, x), expected(first, x))


def test_many_threads_share_one_kernel() -> None:
    mlp = make_mlp(SPEC)
    kernel = kernel_over(EagerProgram(mlp), CpuRuntime(), contexts=2)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        x = rows_of(1 + seed * 5, seed)
        want = expected(mlp, x)
        try:
            for _ in range(20):
                np.testing.assert_array_equal(run(kernel, x), want)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_failing_batch_raises_and_gives_its_context_back() -> None:
    mlp = make_mlp(SPEC)
    failing = False

    def spoil(y: torch.Tensor, rows: int) -> torch.Tensor:
        if failing:
            raise RuntimeError("an illegal memory access was encountered")
        return y

    kernel = kernel_over(EagerProgram(mlp, spoil=spoil), CpuRuntime())
    failing = True
    with pytest.raises(KernelError, match="batch of 4 rows: an illegal memory access"):
        run(kernel, rows_of(4))
    failing = False
    x = rows_of(4)
    np.testing.assert_array_equal(run(kernel, x), expected(mlp, x))


@pytest.mark.parametrize("any_rows", [True, False])
def test_device_tensors_are_launched_on_the_callers_stream_without_waiting(any_rows: bool) -> None:
    mlp, runtime = make_mlp(SPEC), CpuRuntime()
    program = EagerProgram(mlp, any_rows=any_rows)
    base = torch.from_numpy(rows_of(35))
    for x in (base[:33], base[1:34], base.double().T.contiguous().T[:33]):  # as it is; not aligned; neither
        y = torch.empty(33, 3, dtype=x.dtype)
        program.rows.clear()
        run_on_device(runtime, program, SMALL, x, y)
        np.testing.assert_array_equal(y.float().numpy(), expected(mlp, x.float().numpy()))
        assert program.rows == ([33] if any_rows else [32, 16])
        assert all(address % 16 == 0 for each in program.addresses for address in each)
    assert runtime.calls == []
    run_on_device(runtime, program, SMALL, base[:0], torch.empty(0, 3))
