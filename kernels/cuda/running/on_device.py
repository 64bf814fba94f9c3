# SPDX-License-Identifier: Apache-2.0
"""A forward pass of tensors that are on the device already: launched on the caller's own stream, without waiting, so
that it is ordered with what the caller does there and can be captured in a graph of the caller's."""

from __future__ import annotations

import torch
from torch import Tensor

from fused_mlp.kernels.cuda.running.program import Program
from fused_mlp.kernels.cuda.running.runtime import Runtime

ALIGNMENT = 16  # bytes, for which the kernels are compiled


def run_on_device(runtime: Runtime, program: Program, buckets: tuple[int, ...], x: Tensor, y: Tensor) -> None:
    """x: (rows, in_features), y: (rows, out_features), of any float dtype, device and strides."""
    with runtime.current(), torch.no_grad():
        source = x.detach().to(runtime.device, torch.float32)
        if program.any_rows:
            _run(runtime, program, source, y)
            return
        largest = buckets[-1]
        for start in range(0, source.shape[0], largest):
            part = source[start : start + largest]
            rows = part.shape[0]
            bucket = next(bucket for bucket in buckets if bucket >= rows)
            padded = torch.nn.functional.pad(part, (0, 0, 0, bucket - rows))
            results = torch.empty((bucket, y.shape[1]), dtype=torch.float32, device=runtime.device)
            _run(runtime, program, padded, results)
            y[start : start + rows].copy_(results[:rows])


def _run(runtime: Runtime, program: Program, x: Tensor, y: Tensor) -> None:
    def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=runtime.device)

    rows = x.shape[0]
    source = x if _usable(x, runtime) else allocate(tuple(x.shape), torch.float32).copy_(x)
    target = y if _usable(y, runtime) else allocate(tuple(y.shape), torch.float32)
    if rows:
        program.enqueue(source, target, rows, program.workspace(rows, allocate))
    if target is not y:
        y.copy_(target)


def _usable(tensor: Tensor, runtime: Runtime) -> bool:
    return (
        tensor.dtype is torch.float32
        and tensor.device == runtime.device
        and tensor.is_contiguous()
        and tensor.data_ptr() % ALIGNMENT == 0
    )
