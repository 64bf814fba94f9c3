# SPDX-License-Identifier: Apache-2.0
"""How busy this process is, for load balancers and autoscalers. Once a second it reads counters that the operating
system and the engine keep in any case; requests pay nothing. Lives on the asyncio loop; scrapes read it from their
threads."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fused_mlp.service.errors import CALLERS_OWN, Code

if TYPE_CHECKING:
    from fused_mlp.service.catalog.catalog import Catalog
    from fused_mlp.service.catalog.records import ServedVersion

log = logging.getLogger(__name__)

SAMPLE_EVERY_S = 1.0
WINDOW = 5  # samples in the window of a rate
LATE_S = 3.0  # a sample this late is worth a line in the log


class ThreadTime(NamedTuple):
    """`busy`: on a core, or ready to run but waiting for one because of another process or a quota."""

    cpu_ns: int
    busy_ns: int


class Totals(NamedTuple):
    """Counters of one model since the start. `failed`: by the server's fault; `compute_ns`: in kernels."""

    requests: int
    failed: int
    compute_ns: int


class ModelLoads(NamedTuple):
    models: Mapping[str, Totals]
    queue_fill: float  # of the fullest queue, from 0 to 1


@dataclass(frozen=True, eq=False)
class Load:
    """Over the last seconds. `cpu`, `busy` and the second number of a model are shares of the usable cores. `busy`
    exceeds 1 when threads wait for a core. Models: requests per second, and time in kernels."""

    cpu: float = 0.0
    busy: float = 0.0
    queue_fill: float = 0.0
    requests_per_s: float = 0.0
    errors_per_s: float = 0.0
    models: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def utilization(self) -> float:
        """Includes the queue: it fills when a GPU, not a core, is the bottleneck."""
        return self.busy + self.queue_fill


class _Sample(NamedTuple):
    at_s: float
    cpu_ns: int
    busy_ns: int
    models: ModelLoads | None  # None: no stream asked for them


class LoadMeter:
    """`models`: read only while someone watches, since there may be thousands."""

    def __init__(
        self,
        cores: int,
        models: Callable[[], ModelLoads],
        threads: Callable[[], Mapping[int, ThreadTime]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cores = cores
        self._models = models
        self._read = threads or thread_times
        self._clock = clock
        self._threads: Mapping[int, ThreadTime] = {}
        self._samples: deque[_Sample] = deque(maxlen=WINDOW + 1)
        self._next = asyncio.Event()
        self._stopped = False
        self.watchers = 0
        self.load = Load()

    async def run(self) -> None:
        due_s = self._clock()
        while True:
            late_s = self._clock() - due_s
            if late_s > LATE_S:
                log.warning(
                    "this process did not run for %.0f s: stopped by a signal, or starved of CPU", late_s
                )
            try:
                self.sample()
            except Exception:
                log.exception("the load could not be measured")
            due_s = self._clock() + SAMPLE_EVERY_S
            await asyncio.sleep(SAMPLE_EVERY_S)

    def sample(self) -> None:
        before, self._threads = self._threads, self._read()
        last = self._samples[-1] if self._samples else _Sample(0.0, 0, 0, None)
        # Thread by thread: the time of a thread that ended disappears with it.
        none = ThreadTime(0, 0)
        spent = [(now, before.get(thread, none)) for thread, now in self._threads.items()]
        self._samples.append(
            _Sample(
                self._clock(),
                last.cpu_ns + sum(max(0, now.cpu_ns - then.cpu_ns) for now, then in spent),
                last.busy_ns + sum(max(0, now.busy_ns - then.busy_ns) for now, then in spent),
                self._models() if self.watchers else None,
            )
        )
        self.load = self._over_window()
        self._wake()

    def _over_window(self) -> Load:
        first, last = self._samples[0], self._samples[-1]
        if last.at_s <= first.at_s:
            return self.load
        core_ns = (last.at_s - first.at_s) * 1e9 * self._cores
        cpu, busy = (last.cpu_ns - first.cpu_ns) / core_ns, (last.busy_ns - first.busy_ns) / core_ns
        counted = next((s for s in self._samples if s.models is not None), last)
        if last.models is None or counted.models is None or counted is last:
            return Load(cpu, busy)
        seconds = last.at_s - counted.at_s
        rates = dict(_counted_since(counted.models.models, last.models.models))
        return Load(
            cpu,
            busy,
            last.models.queue_fill,
            sum(rate.requests for rate in rates.values()) / seconds,
            sum(rate.failed for rate in rates.values()) / seconds,
            {
                name: (rate.requests / seconds, rate.compute_ns / (seconds * 1e9 * self._cores))
                for name, rate in rates.items()
            },
        )

    async def watch(self, interval_s: float) -> AsyncIterator[Load]:
        """Yields the load every `interval_s` or as often as it is measured; ends with the service."""
        with self._watching():
            due_s = self._clock()
            while not self._stopped:
                await self._next.wait()
                at_s = self._samples[-1].at_s
                if at_s >= due_s and not self._stopped:
                    due_s = at_s + interval_s - SAMPLE_EVERY_S / 2  # samples come a little late or early
                    yield self.load

    @contextmanager
    def _watching(self) -> Iterator[None]:
        if self.watchers == 0 and self._samples:  # the next sample can compute rates
            self._samples[-1] = self._samples[-1]._replace(models=self._models())
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    def stop(self) -> None:
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        # A fresh event for each sample: watchers hold the one before.
        self._next.set()
        self._next = asyncio.Event()


def _counted_since(before: Mapping[str, Totals], now: Mapping[str, Totals]) -> Iterator[tuple[str, Totals]]:
    """Models with traffic between both samples. A model that was forgotten and came back begins at 0."""
    for name, after in now.items():
        then = before.get(name, _NOTHING)
        if after.requests < then.requests:
            then = _NOTHING
        if after != then:
            yield name, Totals(*(a - b for a, b in zip(after, then, strict=True)))


_NOTHING = Totals(0, 0, 0)
_FAULTS = sum(1 << code for code in Code if code not in CALLERS_OWN)


def model_loads(catalog: Catalog, queue_rows: int) -> ModelLoads:
    counted = {}
    for name, counters in catalog.counters():
        lanes = [lane.totals(_FAULTS) for lane in list(counters.lanes.values())]
        # Requests refused before they had a lane, for example because a model cannot be loaded.
        unserved = counters.unserved.snapshot().codes
        failed = sum(count for code, count in unserved.items() if code not in CALLERS_OWN)
        lanes.append((sum(unserved.values()), failed, 0))
        counted[name] = Totals(*map(sum, zip(*lanes, strict=True)))
    versions = (version for model in catalog.models() for version in model.versions)
    return ModelLoads(counted, queue_fill(versions, queue_rows))


def queue_fill(versions: Iterable[ServedVersion], queue_rows: int) -> float:
    """How full the fullest queue is, from 0 to 1."""
    return max((lane.queued_rows for v in versions for lane in v.lanes.values()), default=0) / queue_rows


_TASKS = "/proc/self/task"
_LOWEST, _WORKERS_NICER = 19, 5  # csrc/engine/run/background.hpp


def thread_times() -> dict[int, ThreadTime]:
    """Times of each thread except those of the lowest priority, which yield the cores to requests. If the operating
    system does not say how long threads waited, the CPU time of the process."""
    times = {}
    # In a low-priority process, workers (which are nicer than loops) look like background threads.
    all_count = os.getpriority(os.PRIO_PROCESS, os.getpid()) + _WORKERS_NICER >= _LOWEST
    for thread in map(int, os.listdir(_TASKS)):
        with suppress(OSError, ValueError):  # the thread has ended
            if all_count or os.getpriority(os.PRIO_PROCESS, thread) < _LOWEST:
                with open(f"{_TASKS}/{thread}/schedstat", "rb", buffering=0) as file:
                    cpu, waited, _ = file.read().split()
                times[thread] = ThreadTime(int(cpu), int(cpu) + int(waited))
    if not times:
        cpu_ns = time.process_time_ns()
        times[0] = ThreadTime(cpu_ns, cpu_ns)
    return times
