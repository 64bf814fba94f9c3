# SPDX-License-Identifier: Apache-2.0
"""One log line a minute while requests are lost: which lane loses most of them, and why. It reports overload even when
nothing scrapes the metrics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fused_mlp.service import _engine
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.errors import CALLERS_OWN, Code

log = logging.getLogger(__name__)

LOOK_EVERY_S = 60.0
MIN_SHARE = 0.01
# A caller may cancel at any time; a caller that timed out also cancels.
_LOST = [code for code in Code if code not in CALLERS_OWN or code is Code.CANCELLED]
_LOST_BITS = sum(1 << code for code in _LOST)


class _Totals(NamedTuple):
    codes: Counter[int]
    queue_ns: int
    queued: int
    compute_ns: int
    batches: int


_NOTHING = _Totals(Counter(), 0, 0, 0, 0)


class Losses:
    """Compares the lanes' counters at each look with the look before."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._before: Mapping[str, _Totals] = {}

    def look(self) -> None:
        before, self._before = self._before, dict(self._losing())
        found = [(name, _since(before.get(name, _NOTHING), now)) for name, now in self._before.items()]
        losing = [
            (name, totals) for name, totals in found if _lost(totals) > MIN_SHARE * totals.codes.total()
        ]
        if losing:
            name, worst = max(losing, key=lambda each: _lost(each[1]))
            log.warning(
                "%s%s", _line(name, worst), f"; {len(losing) - 1} more lanes lose some" if losing[1:] else ""
            )

    def _losing(self) -> Iterator[tuple[str, _Totals]]:
        """Lanes that have ever lost a request: for most other lanes, only this is read."""
        for model, counters in self._catalog.counters():
            for (version, variant), lane in list(counters.lanes.items()):
                if lane.totals(_LOST_BITS)[1]:
                    yield f"{model}/{version} {variant}", _totals(lane.snapshot())


def _totals(seen: _engine.LaneSnapshot) -> _Totals:
    queue, compute = seen.queue_duration, seen.compute_duration
    return _Totals(Counter(seen.requests.codes), queue.sum, queue.count, compute.sum, compute.count)


def _since(before: _Totals, now: _Totals) -> _Totals:
    return _Totals(
        Counter({code: count - before.codes[code] for code, count in now.codes.items()}),
        *(after - then for after, then in zip(now[1:], before[1:], strict=True)),
    )


def _lost(totals: _Totals) -> int:
    return sum(totals.codes[code] for code in _LOST)


def _line(name: str, lost: _Totals) -> str:
    counts = [(code, count) for code, count in lost.codes.most_common() if code in _LOST and count]
    codes = ", ".join(f"{count:,} {Code(code).name}" for code, count in counts)
    text = f"{name} lost {_lost(lost):,} of {lost.codes.total():,} requests within a minute: {codes}"
    if lost.batches and lost.queued:
        queue_ms, kernel_ms = lost.queue_ns / lost.queued / 1e6, lost.compute_ns / lost.batches / 1e6
        text += f"; mean time in the queue {queue_ms:.3g} ms, of a kernel call {kernel_ms:.3g} ms"
    return text
