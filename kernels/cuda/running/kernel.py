"""The CUDA kernel as the rest of the project sees it: a pool of launch contexts behind `Kernel`.
The engine calls `run` once per batch from its worker threads; waiting happens without the GIL."""

from __future__ import annotations

import torch

from fused_mlp.kernels.base import Float32, Kernel, KernelInfo
from fused_mlp.kernels.cuda.running.contexts import ContextPool
from fused_mlp.kernels.errors import KernelError
from fused_mlp.models import MlpSpec


class CudaKernel(Kernel):
    def __init__(self, spec: MlpSpec, info: KernelInfo, pool: ContextPool) -> None:
        super().__init__(spec, info)
        self._pool = pool

    def run(self, x: Float32, y: Float32) -> str:
        try:
            with self._pool.borrow() as context:
                context.run(x, y)
        except RuntimeError as error:  # torch's CUDA errors, out-of-memory included
            raise KernelError(f"CUDA failed on a batch of {x.shape[0]} rows: {error}") from error
        return self._info.strategy

    def forward_tensors(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Tensors on a GPU stay there; all others go through `run`."""
        if not (x.is_cuda and y.is_cuda):
            super().forward_tensors(x, y)
            return
        try:
            with self._pool.borrow() as context, torch.inference_mode():
                context.run_on_device(x, y)
        except RuntimeError as error:
            raise KernelError(f"CUDA failed on a batch of {x.shape[0]} rows: {error}") from error
