# SPDX-License-Identifier: Apache-2.0
"""The host's cost of a batch on a GPU, apart from the GPU: the native launcher on a driver that does nothing, and the
Python launcher on a runtime that does nothing, side by side. Needs no GPU. Run as `python -m bench.cuda.launcher`.
The native one as the engine calls it, in C++ through the C interface: rows are gathered into page-locked memory and
answers read from there, both included. What a GPU's copy engines do is in neither."""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.provenance import describe_run, write_result
from fused_mlp.kernels import KernelInfo
from fused_mlp.kernels.cuda.running.contexts import BUCKETS, ContextPool, LaunchContext
from fused_mlp.kernels.cuda.running.kernel import CudaKernel
from fused_mlp.models import LayerSpec, MlpSpec
from tests.support import fake_cuda

RESULTS = Path(__file__).parent.parent / "results" / "cuda-launcher.json"
ROWS = (1, 16, 64, 256, 1024)
SPEC = MlpSpec(in_features=64, layers=(LayerSpec(out_features=10, activation="identity"),))
INFO = KernelInfo("fused", "triton", "cuda", "empty", "sm_80", "float32", 1)
SECONDS, REPEATS = 0.2, 5
# Seconds per call, of so many.
Run = Callable[[np.ndarray, np.ndarray, int], float]
PTX = """.version 8.0
.target sm_80
.visible .entry empty(.param .u64 x, .param .u64 y, .param .u32 rows) { ret; }
"""


class EmptyRuntime:
    """The Runtime seam with nothing behind it; copies between buffers are those of torch on a CPU."""

    device = torch.device("cpu")

    class Nothing:
        """A stream, a mark on one, and a graph."""

        def wait(self) -> None:
            pass

        def replay(self) -> None:
            pass

    def stream(self) -> Nothing:
        return self.Nothing()

    def mark(self, stream: Any) -> Nothing:
        return stream

    def settle(self) -> None:
        pass

    @contextmanager
    def use(self, stream: Any, *, follow: bool = False) -> Iterator[None]:
        yield

    def host_buffer(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(shape)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def capture(self, stream: Any, body: Callable[[], None]) -> Nothing:
        return self.Nothing()


class EmptyProgram:
    label, launches, any_rows, memory_bytes = "empty", 1, True, 0

    def workspace(self, rows: int, allocate: object) -> tuple[torch.Tensor, ...]:
        return ()

    def enqueue(self, x: object, y: object, rows: int, workspace: object) -> None:
        pass


def native_run() -> Run:
    from fused_mlp.kernels import _cuda

    kernels = [(b"", PTX, "empty", 32, 0)]
    launches = [(0, 16, 1, [("x", 0), ("y", 0), ("rows", 0)], 0, 2**31 - 1, False)]
    kernel = _cuda.Kernel(
        _cuda.Device(0), "empty", SPEC.in_features, SPEC.out_features, [], kernels, launches, 2, ()
    )
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = kernel.capsule()
    api = ctypes.c_void_p(read(capsule, b"fused_mlp.kernel"))
    time_batches = ctypes.CDLL(str(fake_cuda.library())).fake_cuda_time_batches
    time_batches.restype = ctypes.c_double

    def run(x: np.ndarray, y: np.ndarray, calls: int, kept: object = capsule) -> float:
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (x, y))
        took: float = time_batches(api, ctypes.c_size_t(len(x)), *pointers, ctypes.c_uint(calls)) * 1e-9
        if took < 0:
            raise RuntimeError("the fake driver failed")
        return took

    return run


def python_run() -> Run:
    contexts: Any = [LaunchContext(EmptyRuntime(), EmptyProgram(), SPEC, BUCKETS) for _ in range(2)]  # type: ignore[arg-type]
    kernel = CudaKernel(SPEC, INFO, ContextPool(contexts))

    def run(x: np.ndarray, y: np.ndarray, calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            kernel.run(x, y)
        return (time.perf_counter() - begin) / calls

    return run


def us_per_call(run: Run, rows: int) -> float:
    """The median of a few runs of calls, as the engine's worker makes them: one after the other."""
    x = np.zeros((rows, SPEC.in_features), np.float32)
    y = np.zeros((rows, SPEC.out_features), np.float32)
    calls = max(20, int(SECONDS / REPEATS / run(x, y, 20)))
    return statistics.median(run(x, y, calls) for _ in range(REPEATS)) * 1e6


def measure(rows: Sequence[int]) -> list[dict[str, float]]:
    torch.set_num_threads(1)
    native, python = native_run(), python_run()
    return [
        {"rows": count, "native_us": us_per_call(native, count), "python_us": us_per_call(python, count)}
        for count in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cuda.launcher", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    wanted = fake_cuda.environment(kernels="empty", streams="drop", delay_us=0)
    if not wanted.items() <= os.environ.items():  # the driver is loaded once per process
        os.execve(
            sys.executable, [sys.executable, "-m", "bench.cuda.launcher", *sys.argv[1:]], os.environ | wanted
        )
    result = {
        **describe_run("bench.cuda.launcher", ("torch", "numpy")),
        "cells": measure(arguments.rows),
    }
    write_result(arguments.output, result)
    print("host time per batch of 64 inputs and 10 outputs, in us; kernels do nothing")
    for cell in result["cells"]:
        print(f"{cell['rows']:5} rows: native {cell['native_us']:6.1f}   Python {cell['python_us']:6.1f}")


if __name__ == "__main__":
    main()
