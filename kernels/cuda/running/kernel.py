# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernel as the rest of the project sees it: a pool of launch contexts behind `Kernel`.
The engine calls `run` once per batch from its worker threads; waiting happens without the GIL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fused_mlp.kernels.base import Float32, Kernel, KernelInfo
from fused_mlp.kernels.cuda.running.contexts import ContextPool
from fused_mlp.kernels.cuda.running.on_device import run_on_device
from fused_mlp.kernels.cuda.running.presence import report_lost
from fused_mlp.kernels.errors import KernelError
from fused_mlp.models import MlpSpec


class CudaKernel(Kernel):
    def __init__(self, spec: MlpSpec, info: KernelInfo, pool: ContextPool) -> None:
        super().__init__(spec, info)
        self._pool = pool
        first = pool.contexts[0]
        self._runtime, self._program, self._buckets = first.runtime, first.program, first.buckets

    @property
    def memory_bytes(self) -> int:
        return self._program.memory_bytes + self._pool.memory_bytes

    def run(self, x: Float32, y: Float32) -> str:
        with self._failures(x.shape[0]), self._pool.borrow() as context:
            context.run(x, y)
        return self._info.strategy

    def forward_tensors(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Tensors on a GPU stay there; all others go through `run`."""
        if not (x.is_cuda and y.is_cuda):
            super().forward_tensors(x, y)
            return
        with self._failures(x.shape[0]):
            run_on_device(self._runtime, self._program, self._buckets, x, y)

    @contextmanager
    def _failures(self, rows: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch's CUDA errors, out-of-memory included
            if self._runtime.is_lost():
                report_lost(self._runtime.device, error)
            raise KernelError(f"CUDA failed on a batch of {rows} rows: {error}") from error
