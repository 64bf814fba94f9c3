# SPDX-License-Identifier: Apache-2.0
"""A program: a strategy bound to one model on one device. Imports no triton, so that `cublas` needs
none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]


class Program(Protocol):
    """Immutable; any number of launch contexts share it. `any_rows`: whether a row's result is the same, bit for bit,
    for any number of rows; if not, only numbers that were tried serve."""

    label: str
    launches: int
    any_rows: bool

    @property
    def memory_bytes(self) -> int:
        """The size of its weights on the device."""

    def workspace(self, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
        """Buffers for up to that many rows; one set per launch context."""

    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        """x: (>= rows, in_features), y: (>= rows, out_features), float32 on the device, contiguous, from a multiple of
        16 bytes on. Asynchronous, on the current stream of the program's device, which is the current one; recorded
        once per bucket and replayed from then on, or called for each batch."""
