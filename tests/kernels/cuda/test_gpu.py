# SPDX-License-Identifier: Apache-2.0
"""The real thing, wherever there is a GPU: `make test-gpu`. Nothing here runs on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fused_mlp import kernels, models
from fused_mlp.kernels.cuda.backend import build_triton
from fused_mlp.kernels.cuda.example.compiling import find_nvcc
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles
from fused_mlp.kernels.cuda.running.contexts import BUCKETS
from fused_mlp.kernels.cuda.running.runtime import TorchRuntime
from fused_mlp.kernels.cuda.running.selection import is_batch_invariant
from fused_mlp.kernels.selfcheck import check_against_float64
from fused_mlp.models import Mlp
from fused_mlp.service.client import Client
from fused_mlp.service.settings.settings import DEMO_REPOSITORY
from tests.kernels.cuda.idioms import written
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.random_programs import random_weights
from tests.support.server import Server

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device: run this on a GPU"),
]
DTYPES = ["float32", "float16", "bfloat16"]
SHAPES = {
    "64-128-128-10": ((64, 128, 128, 10), "relu", False),
    "784-512-256-10": ((784, 512, 256, 10), "relu", False),
    "odd": ((37, 129, 1, 250, 17), "gelu", True),
    "768-3072-768 GeGLU": ((768, 3072, 768), "gelu", (True, False)),
}


PROGRAMS = (
    "pre-norm 33",
    "pre-norm 129",
    "tabular ResNet",
    "skip",
    "heads",
    "gates with norms",
    "split halves",
)


def model(name: str, dtype: str) -> Mlp:
    if name in PROGRAMS:
        return random_weights(dict(written(dtype))[name])
    widths, activation, gated = SHAPES[name]
    return make_mlp(make_spec(widths, activation, gated=gated, output="softmax", dtype=dtype))


def every_candidate(mlp: Mlp) -> list[object]:
    """Each tile that can run the model, with one launch context."""
    from fused_mlp.kernels.cuda.running.contexts import LaunchContext
    from fused_mlp.kernels.cuda.running.triton_programs import TritonProgram

    runtime = TorchRuntime(torch.device("cuda", torch.cuda.current_device()))
    architecture = runtime.architecture
    assert architecture is not None
    contexts = []
    for tile in candidate_tiles(mlp.spec, architecture):
        program = TritonProgram(mlp, tile, runtime.device)
        contexts.append((tile, LaunchContext(runtime, program, mlp.spec)))
    return contexts


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*SHAPES, *PROGRAMS])
def test_every_tile_is_right_and_batch_invariant(name: str, dtype: str) -> None:
    from dataclasses import replace

    from fused_mlp.kernels.cuda.running.contexts import ContextPool
    from fused_mlp.kernels.cuda.running.kernel import CudaKernel

    mlp = model(name, dtype)
    info = kernels.KernelInfo("fused", "triton", "cuda", "", "", dtype, 1)
    for tile, context in every_candidate(mlp):
        check_against_float64(
            CudaKernel(mlp.spec, replace(info, strategy=tile.label), ContextPool([context])), mlp
        )
        assert is_batch_invariant(context, mlp.spec), tile


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*SHAPES, *PROGRAMS])
def test_served_kernel_gives_the_same_bits_in_every_batch(name: str, dtype: str) -> None:
    mlp = model(name, dtype)
    kernel = kernels.compile(mlp, device="cuda", backend="triton")
    info = kernel.describe()
    print(info)
    assert info.strategy == "cublas" or "launched natively" in info.reason
    x = np.random.default_rng(0).standard_normal((2100, mlp.spec.in_features), dtype=np.float32)
    whole = kernel(x)
    for rows in (1, 15, 16, 17, 100, 1024, 1025):
        np.testing.assert_array_equal(kernel(x[:rows]), whole[:rows])


def test_graph_replay_equals_direct_launches() -> None:
    mlp = model("odd", "float16")
    for _, context in every_candidate(mlp):
        x = np.random.default_rng(0).standard_normal((16, 37), dtype=np.float32)
        replayed = np.empty((16, 17), np.float32)
        context.run(x, replayed)
        device_x, direct = torch.from_numpy(x).cuda(), torch.empty(16, 17, device="cuda")
        workspace = context.program.workspace(16, lambda shape, d: torch.zeros(shape, dtype=d, device="cuda"))
        context.program.enqueue(device_x, direct, 16, workspace)
        np.testing.assert_array_equal(direct.cpu().numpy(), replayed)


def test_many_threads_and_a_model_swap_under_load() -> None:
    first, second = (make_mlp(make_spec((64, 128, 10)), seed) for seed in (1, 2))
    x = np.random.default_rng(0).standard_normal((50, 64), dtype=np.float32)
    serving = kernels.compile(first, device="cuda")
    want = serving(x)
    failures: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                np.testing.assert_array_equal(serving(x), want)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        other = kernels.compile(second, device="cuda")
        assert not np.array_equal(other(x), want)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_tensors_on_the_gpu_stay_there() -> None:
    mlp = model("64-128-128-10", "float16")
    kernel = kernels.compile(mlp, device="cuda")
    x = torch.randn(33, 64, device="cuda", dtype=torch.float16)
    y = kernel(x)
    assert (y.device, y.dtype) == (x.device, x.dtype)
    np.testing.assert_array_equal(y.cpu().numpy(), kernel(x.cpu()).numpy())


@pytest.mark.parametrize("inputs", [4096, 11008])
def test_wide_float32_models_are_served(inputs: int) -> None:
    """Sums in one chain would be too inexact for the check at load."""
    mlp = make_mlp(make_spec((inputs, 64)))
    kernel = kernels.compile(mlp, device="cuda", backend="triton")
    assert kernel.describe().dtype == "float32"
    check_against_float64(kernel, mlp)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_gpu_has_the_strategy_and_the_bits_of_the_first() -> None:
    mlp = model("64-128-128-10", "float16")
    first = kernels.compile(mlp, device="cuda:0", backend="triton")
    second = kernels.registry.compile_like(first, mlp, "cuda:1")
    assert second.describe().device == "cuda:1"
    assert second.describe().strategy == first.describe().strategy
    if torch.cuda.get_device_capability(0) == torch.cuda.get_device_capability(1):
        x = np.random.default_rng(0).standard_normal((100, 64), dtype=np.float32)
        np.testing.assert_array_equal(first(x), second(x))


@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not found")
def test_example_is_served_by_name() -> None:
    mlp = make_mlp(make_spec((20, 70, 65), "gelu", dtype="float16"))
    kernel = kernels.compile(mlp, device="cuda", backend="cuda-example")
    x = np.random.default_rng(0).standard_normal((300, 20), dtype=np.float32)
    np.testing.assert_array_equal(kernel(x)[:17], kernel(x[:17]))


def test_fused_module_under_reduce_overhead_follows_its_weights() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).cuda()
    fused = kernels.FusedMLP.from_torch(module)
    compiled = torch.compile(fused, mode="reduce-overhead")
    x = torch.randn(33, 64, device="cuda")
    with torch.no_grad():
        for _ in range(4):  # recorded with the second call, replayed from the third on
            torch.testing.assert_close(compiled(x), fused(x), rtol=1e-5, atol=1e-5)
        for parameter in fused.parameters():
            parameter.mul_(2)
        torch.testing.assert_close(compiled(x), fused(x), rtol=1e-5, atol=1e-5)


def test_server_answers_from_the_gpu() -> None:
    expected = models.load(DEMO_REPOSITORY / "digits" / "1").to_torch()
    x = np.random.default_rng(1).uniform(0, 16, (1500, 64)).astype(np.float32)
    settings = {"device": "cuda", "backend": "triton", "allow_override": True, "shadow": 1}
    with Server(**settings) as server, Client(server.target) as client:
        (version,) = client.model("digits").versions
        assert {kernel.variant for kernel in version.kernels} == {"fused", "unfused"}
        assert all(kernel.device.startswith("cuda") for kernel in version.kernels)
        for rows in (1, 20, 100, 1024, 1500):
            with torch.inference_mode():
                eager = expected(torch.from_numpy(x[:rows])).numpy()
            for variant in ("fused", "unfused"):
                output = client.predict("digits", x[:rows], variant=variant).output
                np.testing.assert_allclose(output, eager, atol=2e-6)


COMPILE = (
    "from fused_mlp import kernels; from tests.kernels.cuda.random_models import *; "
    "mlp = make_mlp(make_spec((64, 128, 10))); "
    "print(kernels.compile(mlp, device='cuda', backend='triton').describe())"
)


def test_cache_that_cannot_be_written_to_disables_nothing(tmp_path: Path) -> None:
    """A file in the way, since root may write to read-only directories."""
    (tmp_path / "cache").write_text("")
    variables = {"TRITON_CACHE_DIR": tmp_path / "cache", "TMPDIR": tmp_path, "PYTHONPATH": ROOT}
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    subprocess.run([sys.executable, "-c", COMPILE], cwd=ROOT, env=environment, check=True)
    assert list(tmp_path.glob("fused-mlp-triton-*/*/*.cubin"))


def test_warm_kernel_cache_needs_no_compiler(tmp_path: Path) -> None:
    """The second start finds everything in the directory: nothing in it changes."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    listings = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", COMPILE], cwd=ROOT, env=environment, check=True)
        listings.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()})
    assert listings[0]
    assert listings[0] == listings[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*SHAPES, *PROGRAMS])
def test_speed_against_eager(
    name: str, dtype: str, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    """Prints ratios of median times, inputs and outputs on the GPU; asserts only that both ran."""
    mlp = model(name, dtype)
    kernel = build_triton(mlp)
    eager = mlp.to_torch().cuda()
    lines = [f"{name} {dtype}: {kernel.describe()}"]
    for rows in (1, *BUCKETS):
        x = torch.randn(rows, mlp.spec.in_features, device="cuda", dtype=next(eager.parameters()).dtype)
        with torch.inference_mode():
            times = [_median_seconds(lambda x=x, run=run: run(x)) for run in (eager, kernel)]
        lines.append(
            f"  {rows:5} rows: eager {times[0] * 1e6:8.1f} us, fused {times[1] * 1e6:8.1f} us, "
            f"ratio {times[0] / times[1]:5.2f}"
        )
        assert min(times) > 0
    record_property("speed", lines)
    with capsys.disabled():
        print("\n" + "\n".join(lines))


def _median_seconds(call) -> float:
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(50):
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[len(seconds) // 2]
