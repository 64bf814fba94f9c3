# SPDX-License-Identifier: Apache-2.0
"""A program for tests of the launcher: eager layers on the CPU, with a memory of how it was called. And a
counter of what torch would launch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fused_mlp.models import Mlp


class EagerProgram:
    launches = 1
    memory_bytes = 100

    def __init__(
        self,
        mlp: Mlp,
        label: str = "eager",
        spoil: Callable[[Tensor, int], Tensor] = lambda y, rows: y,
        *,
        any_rows: bool = True,
    ) -> None:
        self.label = label
        self.any_rows = any_rows
        self.rows: list[int] = []
        self.addresses: set[tuple[int, ...]] = set()
        self._module = mlp.to_torch()
        self._dtype = next(self._module.parameters()).dtype
        self._spoil = spoil

    def workspace(self, rows: int, allocate: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return (allocate((rows, 3), torch.float32),)

    @torch.inference_mode()
    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        self.rows.append(rows)
        self.addresses.add((x.data_ptr(), y.data_ptr(), workspace[0].data_ptr()))
        # Row by row: a CPU's GEMM may sum in another order for another number of rows.
        # Equal rows once: captures see zeros, 1024 of them.
        distinct, which = torch.unique(x[:rows].to(self._dtype), dim=0, return_inverse=True)
        result = torch.cat([self._module(row[None]) for row in distinct])[which]
        y[:rows] = self._spoil(result, rows)


class CountingKernels(TorchDispatchMode):
    """Counts operators that compute; views launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        # A cast is listed among the views, because it may return what it was given.
        casts = function is torch.ops.aten.to.dtype and result.dtype != arguments[0].dtype
        self.count += casts or not function.is_view
        return result
