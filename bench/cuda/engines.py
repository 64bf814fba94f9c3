# SPDX-License-Identifier: Apache-2.0
"""Everything that can run a model on a GPU, and how long it takes there: each strategy of ours, captured for
exactly the rows asked for, eager PyTorch, torch.compile, and both variants as they are served."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.cuda.report import PEERS
from bench.kernels.shapes import build
from fused_mlp import kernels
from fused_mlp.kernels.cuda.backend import candidates
from fused_mlp.kernels.cuda.running.contexts import LaunchContext
from fused_mlp.kernels.cuda.running.on_device import run_on_device
from fused_mlp.kernels.cuda.running.runtime import Runtime
from fused_mlp.kernels.cuda.running.selection import Candidate
from fused_mlp.models import Dtype, Mlp
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES
from fused_mlp.models.importers.torch.writing import make_module

Forward = Callable[[torch.Tensor], torch.Tensor]
Measured = tuple[float, torch.Tensor]  # seconds per forward, and the result

DEVICE = "cuda"
RUNS, CALLS = 7, 20  # the median of RUNS, each the mean of CALLS
# Where engines disagree by more than this share of the largest result, one of them computes something else.
AGREEMENT: dict[Dtype, float] = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


def device_seconds(call: Callable[[], object]) -> float:
    """Per call, between two events on the current stream."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) * 1e-3 / CALLS)
    return sorted(seconds)[RUNS // 2]


def wall_seconds(call: Callable[[], object]) -> float:
    seconds = []
    for turn in range(3 + RUNS * CALLS):
        began = time.perf_counter()
        call()
        if turn >= 3:
            seconds.append(time.perf_counter() - began)
    return sorted(seconds)[len(seconds) // 2]


def compiled(module: nn.Module) -> tuple[Forward, Forward]:
    """By torch.compile, without and with CUDA graphs, anew for each batch size."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 100  # past it, torch.compile would run eager
    return (
        torch.compile(copy.deepcopy(module), dynamic=False),
        torch.compile(copy.deepcopy(module), mode="reduce-overhead", dynamic=False),
    )


class Subject:
    """One model in one dtype, with everything that can run it."""

    def __init__(self, shape: str, dtype: Dtype) -> None:
        base = build(shape)
        self.shape, self.dtype = shape, dtype
        self.mlp = Mlp(base.spec.model_copy(update={"dtype": dtype}), base.tensors())
        self.fused = kernels.compile(self.mlp, device=DEVICE, backend="triton")
        self.unfused = kernels.compile(self.mlp, device=DEVICE, variant="unfused")
        module = make_module(self.mlp, joined=True).to(DEVICE)
        self._modules = dict(zip(PEERS, (module, *compiled(module)), strict=True))

    def measure(self, rows: int) -> dict[str, Any]:
        """One engine that fails, or computes something else, is reported and leaves the others in the race."""
        generator = torch.Generator(DEVICE).manual_seed(0)
        x = torch.randn(rows, self.mlp.spec.in_features, device=DEVICE, generator=generator)
        with torch.inference_mode():
            expected = self._modules["eager"](x.to(TORCH_DTYPES[self.dtype])).float()
        us: dict[str, float] = {}
        failed: dict[str, str] = {}
        for label, measure in self._engines(x):
            try:
                seconds, result = measure()
            except Exception as error:
                failed[label] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                continue
            worst = float((result - expected).abs().max() / expected.abs().max())
            if worst < AGREEMENT[self.dtype]:
                us[label] = seconds * 1e6
            else:
                failed[label] = f"differs from eager by {worst:.2g} of the largest result"
        return {
            "shape": self.shape,
            "dtype": self.dtype,
            "rows": rows,
            "chosen": self.fused.describe().strategy,
            "device_us": us,
            "served_us": {name: 1e6 * seconds for name, seconds in self._served(x.cpu().numpy())},
            "failed": failed,
        }

    def _engines(self, x: torch.Tensor) -> Iterator[tuple[str, Callable[[], Measured]]]:
        runtime, found = candidates(self.mlp)
        for candidate in found:
            yield candidate.label, partial(self._run_program, runtime, candidate, x)
        for name, module in self._modules.items():
            yield name, partial(self._run_module, module, x.to(TORCH_DTYPES[self.dtype]))

    def _run_program(self, runtime: Runtime, candidate: Candidate, x: torch.Tensor) -> Measured:
        """Captured for exactly these rows."""
        program = candidate.build()
        context = LaunchContext(runtime, program, self.mlp.spec, (x.shape[0],))
        y = torch.empty(x.shape[0], self.mlp.spec.out_features, device=x.device)
        run_on_device(runtime, program, context.buckets, x, y)
        return context.seconds(x.shape[0]), y

    def _run_module(self, module: Forward, x: torch.Tensor) -> Measured:
        with torch.inference_mode():
            # A copy: under graphs the next call overwrites what this one returned.
            return device_seconds(lambda: module(x)), module(x).to(torch.float32, copy=True)

    def _served(self, x: np.ndarray) -> Iterator[tuple[str, float]]:
        y = np.empty((x.shape[0], self.mlp.spec.out_features), np.float32)
        for name, kernel in (("fused", self.fused), ("unfused", self.unfused)):
            yield name, wall_seconds(lambda kernel=kernel: kernel.run(x, y))
