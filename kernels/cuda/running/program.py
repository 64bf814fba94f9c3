"""What a program is: a strategy bound to one model on one device. Imports no triton, so that `cublas` needs
none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]


class Program(Protocol):
    """Immutable; any number of launch contexts share it."""

    label: str
    launches: int

    def workspace(self, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
        """Buffers for up to that many rows; one set per launch context."""

    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        """x: (>= rows, in_features), y: (>= rows, out_features), float32 on the device. Asynchronous; on the
        current stream; recorded once per bucket and replayed from then on."""
