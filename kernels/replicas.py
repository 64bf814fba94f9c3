# SPDX-License-Identifier: Apache-2.0
"""One model on several devices: a kernel over one kernel for each, of which the one with the fewest batches runs the
next. All of them are the same program; on unequal devices a row's result may depend on which ran it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from fused_mlp.kernels.base import Float32, Kernel


class ReplicatedKernel(Kernel):
    def __init__(self, kernels: Sequence[Kernel]) -> None:
        infos = [kernel.describe() for kernel in kernels]
        devices = "+".join(info.device for info in infos)
        others = [f"on {info.device}: strategy {info.strategy}" for info in infos[1:]]
        reason = "; ".join([infos[0].reason, *others])
        super().__init__(kernels[0].spec, replace(infos[0], device=devices, reason=reason))
        self._kernels = tuple(kernels)
        self._running = [0] * len(kernels)
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        return sum(kernel.memory_bytes for kernel in self._kernels)

    def run(self, x: Float32, y: Float32) -> str:
        with self._lock:
            index = self._running.index(min(self._running))
            self._running[index] += 1
        try:
            return self._kernels[index].run(x, y)
        finally:
            with self._lock:
                self._running[index] -= 1
