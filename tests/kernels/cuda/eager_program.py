"""A program for tests of the launcher: eager layers on the CPU, with a memory of how it was called."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from models import Mlp


class EagerProgram:
    launches = 1

    def __init__(
        self, mlp: Mlp, label: str = "eager", spoil: Callable[[Tensor, int], Tensor] = lambda y, rows: y
    ) -> None:
        self.label = label
        self.rows: list[int] = []
        self.addresses: set[tuple[int, ...]] = set()
        self._module = mlp.to_torch()
        self._spoil = spoil

    def workspace(self, rows: int, allocate: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return (allocate((rows, 3), torch.float32),)

    @torch.inference_mode()
    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        self.rows.append(rows)
        self.addresses.add((x.data_ptr(), y.data_ptr(), workspace[0].data_ptr()))
        # Row by row: a CPU's GEMM may sum in another order for another number of rows.
        result = torch.cat([self._module(row[None]) for row in x[:rows]])
        y[:rows] = self._spoil(result, rows)
