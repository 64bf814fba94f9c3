# SPDX-License-Identifier: Apache-2.0
"""Gives freed memory back to the system. The allocator keeps what a burst has freed: after 4096 rows of an unfused
model resident memory stayed at twice that of an idle server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from fused_mlp.service import _engine

LOOK_EVERY_S = 10.0
# Resident memory that grew, or allocated memory that was freed, since the last time. In a steady state there is
# neither, and nothing is done.
MIN_BYTES = 16 << 20
# It holds the allocator's locks for up to 0.1 ms per MiB, so a busy server does it seldom.
BUSY = 0.5
BUSY_EVERY_S = 60.0

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


class Trimmer:
    """`utilization`: of the cores, 1 if all are in use."""

    def __init__(
        self,
        utilization: Callable[[], float],
        resident: Callable[[], int] = resident_bytes,
        allocated: Callable[[], int] = _engine.allocated_bytes,
        trim: Callable[[], None] = _engine.release_free_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._utilization = utilization
        self._resident = resident
        self._allocated = allocated
        self._trim = trim
        self._clock = clock
        self._start_anew()

    def _start_anew(self) -> None:
        self._least, self._most_allocated, self._trimmed_s = (
            self._resident(),
            self._allocated(),
            self._clock(),
        )

    def look(self) -> None:
        self._least = min(self._least, resident := self._resident())
        self._most_allocated = max(self._most_allocated, allocated := self._allocated())
        if max(resident - self._least, self._most_allocated - allocated) < MIN_BYTES:
            return
        if self._utilization() > BUSY and self._clock() - self._trimmed_s < BUSY_EVERY_S:
            return
        self._trim()
        self._start_anew()
