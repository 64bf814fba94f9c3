# SPDX-License-Identifier: Apache-2.0
"""Measured limits of this machine: peak arithmetic, and the time to read as many bytes as a model's weights have."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fused_mlp.kernels.cores import usable_cores
from fused_mlp.kernels.errors import KernelUnavailable


@dataclass(frozen=True)
class Limits:
    """For the profiled device and number of threads."""

    flops_per_s: float
    read_s: float  # to read the model's weights once, from the cache level that holds them
    weight_bytes: int
    int8_ops_per_s: float | None = None  # None where nothing is computed in int8

    def best(self, other: Limits) -> Limits:
        """The better of two measurements: other processes can only make one slower."""
        return replace(
            self,
            flops_per_s=max(self.flops_per_s, other.flops_per_s),
            read_s=min(self.read_s, other.read_s),
            int8_ops_per_s=max(self.int8_ops_per_s or 0.0, other.int8_ops_per_s or 0.0) or None,
        )

    def compute_s(self, flops: int, int8_flops: int) -> float:
        """`int8_flops`: those of `flops` that are int8 products."""
        of_int8 = int8_flops / self.int8_ops_per_s if self.int8_ops_per_s else 0.0
        return (flops - int8_flops) / self.flops_per_s + of_int8

    @property
    def bytes_per_s(self) -> float:
        return self.weight_bytes / self.read_s


class MachineProbe:
    """The CPU's limits. Needs the compiled module."""

    def __init__(self) -> None:
        try:
            from fused_mlp.kernels import _cpu  # noqa: PLC0415 - it may not have been built
        except ImportError:
            raise KernelUnavailable(
                "the machine cannot be measured: fused_mlp.kernels._cpu is missing, install fused-mlp again, with "
                "a C++ compiler"
            ) from None
        self._probe_flops = _cpu.probe_flops
        self._probe_read = _cpu.probe_read_seconds

    def flops(self, threads: int, samples: int = 5, int8: bool = False) -> float:
        """Operations per second of float32 or int8 multiply-adds, the best of some samples."""
        return max(self._probe_flops(threads, int8) for _ in range(samples))

    def read_seconds(self, size: int, threads: int, samples: int = 5) -> float:
        """To read `size` bytes once, the best of some samples."""
        return self._probe_read(size, threads, samples)


def measure_cpu(weight_bytes: int, threads: int, int8: bool = False) -> Limits:
    """Measured with at most as many threads as there are cores."""
    probe, threads = MachineProbe(), min(threads, usable_cores())
    try:
        return Limits(
            probe.flops(threads, 15),
            probe.read_seconds(weight_bytes, threads, 15),
            weight_bytes,
            probe.flops(threads, 15, int8=True) if int8 else None,
        )
    except (RuntimeError, MemoryError) as error:
        raise KernelUnavailable(f"the machine cannot be measured: {error}") from None


def measure_cuda(weight_bytes: int, dtype: torch.dtype = torch.float32) -> Limits:
    """Measured with torch: a large product in its current precision, and a large copy, half of which is reading."""
    a = torch.randn(4096, 4096, device="cuda", dtype=dtype)
    data = torch.empty(64 << 20, dtype=torch.float32, device="cuda")
    product = _best_cuda_seconds(lambda: a @ a)
    copied = _best_cuda_seconds(data.clone)
    return Limits(2.0 * 4096**3 / product, weight_bytes * copied / (2 * data.numel() * 4), weight_bytes)


def _best_cuda_seconds(call: Callable[[], object], samples: int = 10) -> float:
    best = float("inf")
    for _ in range(samples):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def describe_machine() -> dict[str, object]:
    """The machine, as recorded with each result."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }
