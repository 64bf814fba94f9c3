# SPDX-License-Identifier: Apache-2.0
"""The CPU kernel from the outside: how it is chosen and described, the arrays it takes, its C interface."""

from __future__ import annotations

import ctypes
import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from fused_mlp import kernels
from fused_mlp.kernels import KernelInputError, KernelUnavailable, _cpu
from fused_mlp.kernels.backends import cpu
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.kernels.cores import usable_cores
from tests.kernels.cpu_models import plain_mlp, rows_for, run

SMALL = plain_mlp(64, 128, 128, 10)
WIDE = plain_mlp(512, 1024, 1024, 256)


def test_it_is_the_default_fused_kernel_on_a_cpu() -> None:
    info = kernels.compile(SMALL, device="cpu").describe()
    assert (info.variant, info.backend, info.device, info.dtype) == ("fused", "cpu", "cpu", "float32")
    assert info.isa == _cpu.usable_isas()[0]
    assert info.threads == usable_cores()
    assert info.reason == "the first choice of auto"


def test_describe_names_the_strategies_for_small_and_large_batches() -> None:
    assert kernels.compile(SMALL, threads=1).describe().strategy == "gemv to 5 rows, row_block above"
    assert "gemv" in (strategy := kernels.compile(WIDE, threads=2).describe().strategy)
    assert strategy.endswith("row_block above")


def test_models_that_outgrow_the_caches_go_layer_by_layer() -> None:
    # By rows, every thread would read all weights from memory.
    strategy = CpuKernel(plain_mlp(1024, 4096, 1024, 2048), 2).describe().strategy
    assert strategy == "gemv to 5 rows, layer_by_layer above"


def test_run_returns_the_strategy_it_used() -> None:
    kernel = CpuKernel(SMALL, 1)
    for rows, strategy in [(1, "gemv"), (5, "gemv"), (6, "row_block"), (400, "row_block")]:
        assert kernel.run(rows_for(SMALL, rows), np.empty((rows, 10), np.float32)) == strategy


def test_the_first_call_imports_nothing() -> None:
    # It would import without the GIL while other first calls wait for it with the GIL.
    code = (
        "import builtins, numpy as np; from fused_mlp.kernels.backends.cpu import CpuKernel; "
        "from tests.kernels.cpu_models import plain_mlp; kernel = CpuKernel(plain_mlp(4, 3), 1); "
        "real, seen = builtins.__import__, []; "
        "builtins.__import__ = lambda name, *rest: seen.append(name) or real(name, *rest); "
        "kernel(np.ones((2, 4), np.float32)); print(seen)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("isa", _cpu.usable_isas())
def test_environment_forces_an_instruction_set(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_ISA", isa)
    assert kernels.compile(SMALL).describe().isa == isa


def test_instruction_set_that_cannot_run_here_fails_with_those_that_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FUSED_MLP_ISA", "mmx")
    with pytest.raises(KernelUnavailable, match=r"FUSED_MLP_ISA.*expected one of .*portable.*got 'mmx'"):
        kernels.compile(SMALL, backend="cpu")


def test_the_backend_still_answers_to_its_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="'native' is called 'cpu' now"):
        assert kernels.compile(SMALL, backend="native").describe().backend == "cpu"


def test_without_the_compiled_module_the_backend_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_cpu", None)
    with pytest.raises(KernelUnavailable, match=r"kernels\._cpu is missing: install fused-mlp again"):
        kernels.compile(SMALL, backend="cpu")


def test_package_imports_without_the_compiled_module() -> None:
    code = (
        "import sys; sys.modules['fused_mlp.kernels._cpu'] = None; from fused_mlp import kernels; "
        "print(len(kernels.backends()), kernels.backends('fused', 'cpu')[0].unavailable(None))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "fused_mlp.kernels._cpu is missing" in done.stdout


@pytest.mark.parametrize("rows", [0, 1, 3, 100])
def test_numpy_in_numpy_out_and_torch_in_torch_out(rows: int) -> None:
    kernel = CpuKernel(SMALL, 1)
    x = rows_for(SMALL, rows)
    expected = run(kernel, x)
    from_numpy = kernel(x)
    from_torch = kernel(torch.from_numpy(x))
    assert isinstance(from_numpy, np.ndarray)
    assert isinstance(from_torch, torch.Tensor)
    np.testing.assert_array_equal(from_numpy, expected)
    np.testing.assert_array_equal(from_torch.numpy(), expected)


def test_out_is_written_and_returned() -> None:
    kernel = CpuKernel(SMALL, 1)
    x = rows_for(SMALL, 4)
    expected = kernel(x)
    array = np.empty((4, 10), np.float32)
    assert kernel(x, out=array) is array
    tensor = torch.empty(4, 10)
    assert kernel(torch.from_numpy(x), out=tensor) is tensor
    np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_out_may_be_the_input_itself() -> None:
    square = plain_mlp(64, 64)
    kernel = CpuKernel(square, 1)
    x = rows_for(square, 8)
    expected = kernel(x)
    array, tensor = x.copy(), torch.from_numpy(x.copy())
    np.testing.assert_array_equal(kernel(array, out=array), expected)
    np.testing.assert_array_equal(kernel(tensor, out=tensor).numpy(), expected)


@pytest.mark.parametrize("kind", ["float64", "float16", "strided", "transposed", "strided out"])
def test_other_dtypes_and_strides_are_converted(kind: str) -> None:
    kernel = CpuKernel(SMALL, 1)
    x = torch.from_numpy(rows_for(SMALL, 6)).half().float()
    expected = kernel(x)
    out = torch.empty(6, 20)[:, ::2] if kind == "strided out" else None
    given = {
        "float64": x.double(),
        "float16": x.half(),
        "strided": torch.repeat_interleave(x, 2, dim=1)[:, ::2],
        "transposed": x.T.contiguous().T,
        "strided out": x,
    }[kind]
    y = kernel(given, out=out)
    assert y.dtype == given.dtype
    torch.testing.assert_close(y, expected.to(given.dtype), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(64,), (2, 63), (2, 2, 64), ()])
def test_wrong_shapes_are_refused_with_what_was_expected(shape: tuple[int, ...]) -> None:
    kernel = CpuKernel(SMALL, 1)
    with pytest.raises(KernelInputError, match=r"expected shape \(rows, 64\), got"):
        kernel(np.zeros(shape, np.float32))
    with pytest.raises(KernelInputError, match=r"expected shape \(rows, 64\), got"):
        kernel(torch.zeros(shape))


def test_wrong_out_is_refused() -> None:
    kernel = CpuKernel(SMALL, 1)
    x = rows_for(SMALL, 2)
    with pytest.raises(KernelInputError, match="out"):
        kernel(x, out=np.empty((3, 10), np.float32))
    with pytest.raises(KernelInputError, match="out"):
        kernel(x, out=np.empty((2, 11), np.float32))
    with pytest.raises(KernelInputError, match="expected x"):
        kernel.run(x, np.empty((3, 10), np.float32))


class KernelApi(ctypes.Structure):
    """struct fused_mlp_kernel of csrc/kernel_api.h, as another language would see it."""

    _fields_ = (
        ("abi", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("ctx", ctypes.c_void_p),
        ("in_features", ctypes.c_size_t),
        ("out_features", ctypes.c_size_t),
        (
            "run",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_void_p,
                ctypes.c_uint,
                ctypes.c_char_p,
                ctypes.c_size_t,
            ),
        ),
        ("strategy", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)),
        ("max_at_once", ctypes.c_uint32),
        ("steps", ctypes.c_void_p),
        ("run_groups", ctypes.c_void_p),
    )


def api_of(capsule: object) -> KernelApi:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.POINTER(KernelApi)
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api: KernelApi = pointer(capsule, b"fused_mlp.kernel").contents
    return api


def test_the_capsule_runs_the_kernel_and_outlives_its_owner() -> None:
    kernel = CpuKernel(SMALL, 1)
    x = rows_for(SMALL, 9)
    expected = run(kernel, x)
    capsule = kernel.capsule()
    del kernel
    api = api_of(capsule)
    assert (api.abi, api.in_features, api.out_features) == (3, 64, 10)
    y = np.empty((9, 10), np.float32)
    assert api.run(api.ctx, x.ctypes.data, 9, y.ctypes.data, 0, None, 0) == 0
    np.testing.assert_array_equal(y, expected)
    assert api.strategy(api.ctx, 1) == b"gemv"


def test_the_strategy_is_the_one_that_was_used() -> None:
    mlp = plain_mlp(1024, 4096, 1024, 2048)
    kernel = CpuKernel(mlp, 2)
    assert kernel.describe().strategy == "gemv to 5 rows, layer_by_layer above"
    capsule = kernel.capsule()
    api = api_of(capsule)
    x, y = rows_for(mlp, 8), np.empty((8, 2048), np.float32)
    busy = 2  # no core is free: it computes on one thread
    assert api.run(api.ctx, x.ctypes.data, 8, y.ctypes.data, busy, None, 0) == 0
    assert api.strategy(api.ctx, 8) == b"row_block"
    assert api.strategy(api.ctx, 9) == b"layer_by_layer"  # of another batch: as planned


def test_the_gil_is_released_while_it_computes() -> None:
    kernel = CpuKernel(WIDE, 1)
    x = rows_for(WIDE, 2000)
    progressed = threading.Event()
    worker = threading.Thread(target=progressed.set)
    y = np.empty((2000, 256), np.float32)
    # The interpreter never asks for the GIL back: the worker can only run if the kernel releases it.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        worker.start()
        kernel.run(x, y)
        assert progressed.is_set()
    finally:
        sys.setswitchinterval(interval)
        worker.join()


def _run_in_child(
    queue: multiprocessing.Queue[bool], kernel: CpuKernel, x: np.ndarray, y: np.ndarray
) -> None:
    queue.put(bool(np.array_equal(run(kernel, x), y)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_helpers_of_its_own() -> None:
    kernel = CpuKernel(WIDE, 2)
    x = rows_for(WIDE, 64)
    y = run(kernel, x)
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[bool] = context.Queue()
    child = context.Process(target=_run_in_child, args=(queue, kernel, x, y))
    child.start()
    assert queue.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
