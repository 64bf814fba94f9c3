"""The launcher on a double of the CUDA runtime: buckets, padding, static buffers, capture, re-entrancy."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from fused_mlp.kernels import KernelError, KernelInfo
from fused_mlp.kernels.cuda.running.contexts import BUCKETS, ContextPool, LaunchContext
from fused_mlp.kernels.cuda.running.kernel import CudaKernel
from fused_mlp.models import Mlp
from tests.kernels.cuda.cpu_runtime import CpuRuntime
from tests.kernels.cuda.eager_program import EagerProgram
from tests.kernels.cuda.random_models import make_mlp, make_spec

SPEC = make_spec((5, 7, 3))
INFO = KernelInfo("fused", "triton", "cuda", "eager", "sm_80", "float32", 1)
SMALL = (16, 32)  # enough to slice, quick to capture


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


def test_batch_larger_than_every_bucket_runs_in_slices() -> None:
    mlp = make_mlp(SPEC)
    program = EagerProgram(mlp)
    kernel = kernel_over(program, CpuRuntime())
    program.rows.clear()
    x = rows_of(32 * 2 + 3)
    np.testing.assert_array_equal(run(kernel, x), expected(mlp, x))
    assert program.rows == [32, 32, 16]


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
    for rows in (1, 32, 16, 40, 0):
        run(kernel, rows_of(rows))
    assert "capture" not in runtime.calls
    assert len(program.addresses) == 1


def test_each_slice_is_replayed_once_and_waited_for() -> None:
    runtime = CpuRuntime()
    kernel = kernel_over(EagerProgram(make_mlp(SPEC)), runtime)
    runtime.calls.clear()
    run(kernel, rows_of(33))
    assert runtime.calls == ["replay", "synchronize"] * 2
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


def test_device_tensors_stay_on_the_device_and_follow_the_callers_stream() -> None:
    mlp = make_mlp(SPEC)
    runtime = CpuRuntime()
    context = LaunchContext(runtime, EagerProgram(mlp), SPEC, SMALL)
    runtime.calls.clear()
    x = rows_of(33)
    y = torch.empty(33, 3, dtype=torch.float64)
    context.run_on_device(torch.from_numpy(x), y)
    np.testing.assert_array_equal(y.float().numpy(), expected(mlp, x))
    assert runtime.calls == ["follow", "replay", "replay", "synchronize"]
