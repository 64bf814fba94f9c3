# SPDX-License-Identifier: Apache-2.0
"""Time per call, without a profiler, which would add overhead. Variants take turns, so that load from other processes
affects all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Key = TypeVar("Key")

_SAMPLE_S = 0.004  # long enough that the cost of clock and loop is negligible
_MIN_SAMPLES = 5


@dataclass(frozen=True)
class Time:
    us: float
    cpu_us: float  # of all threads

    @property
    def waited(self) -> bool:
        """Whether the process was off the CPU for much of the time: other processes used it."""
        return self.us > 1.5 * self.cpu_us

    def agrees_with(self, other: Time) -> bool:
        return 0.75 * other.us < self.us < other.us / 0.75


class OtherLoad:
    """The load that others, the hypervisor included, put on the cores of this process. Only Linux tells."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), self._busy_s(), time.process_time()

    def missing_share(self, threads: int) -> float:
        """The share of the time since then in which that many threads would have found no free core."""
        now = time.perf_counter(), self._busy_s(), time.process_time()
        elapsed, busy, own = (after - before for after, before in zip(now, self._start, strict=True))
        if busy == 0:
            return 0.0
        cores = len(os.sched_getaffinity(0))
        free = cores - max(0.0, busy - own) / elapsed
        return min(1.0, max(0.0, 1 - free / min(threads, cores)))

    @staticmethod
    def _busy_s() -> float:
        try:
            lines = Path("/proc/stat").read_text().splitlines()
        except OSError:
            return 0.0
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        ticks = 0
        for name, *fields in map(str.split, lines):
            if name in allowed:
                user, nice, system, _idle, _waiting, *rest = map(int, fields)
                ticks += user + nice + system + sum(rest[:3])  # interrupts, and what the hypervisor took
        return ticks / os.sysconf("SC_CLK_TCK")


def time_calls(calls: Mapping[Key, Callable[[], object]], budget_s: float) -> dict[Key, Time]:
    """The best time per call of each. `budget_s` applies to each; a slow call still gets a few samples."""
    repeats = {key: _repeats(call) for key, call in calls.items()}
    best: dict[Key, Time] = {}
    deadline = time.perf_counter() + budget_s * len(calls)
    samples = 0
    while samples < _MIN_SAMPLES or time.perf_counter() < deadline:
        for key, call in calls.items():
            sample = _sample(call, repeats[key])
            if key not in best or sample.us < best[key].us:
                best[key] = sample
        samples += 1
    return best


def _repeats(call: Callable[[], object]) -> int:
    """The number of calls per sample. Also warms up."""
    repeats = 1
    while True:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        elapsed = time.perf_counter() - start
        if elapsed >= _SAMPLE_S:
            return repeats
        repeats = max(repeats * 2, int(repeats * _SAMPLE_S / max(elapsed, 1e-6)))


def _sample(call: Callable[[], object], repeats: int) -> Time:
    call()  # the caches are cold after another variant's turn
    rounds = range(repeats)
    cpu = time.process_time()
    start = time.perf_counter()
    for _ in rounds:
        call()
    elapsed = time.perf_counter() - start
    cpu = time.process_time() - cpu
    return Time(elapsed / repeats * 1e6, cpu / repeats * 1e6)
