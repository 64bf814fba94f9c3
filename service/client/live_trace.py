# SPDX-License-Identifier: Apache-2.0
"""A trace of real traffic: spans, read from the messages of the admin service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fused_mlp.protos import admin_pb2 as pb

PHASES = tuple(phase.name.lower() for phase in pb.TracePhase.DESCRIPTOR.values)


@dataclass(frozen=True)
class LiveSpan:
    """One phase of a request, or of a whole batch when `request` is 0. Times are of the server's monotonic clock."""

    phase: str
    thread: int
    request: int
    rows: int
    start_ns: int
    duration_ns: int
    lane: str
    trace_id: str = ""

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


@dataclass(frozen=True)
class LiveTrace:
    spans: tuple[LiveSpan, ...]
    threads: dict[int, str]
    dropped: int

    @property
    def requests(self) -> int:
        return len({span.request for span in self.spans if span.request})


def read_trace(chunks: Iterable[Any]) -> LiveTrace:
    spans: list[LiveSpan] = []
    threads: dict[int, str] = {}
    lanes: list[str] = []
    dropped = 0
    for chunk in chunks:
        threads.update(chunk.threads)
        lanes.extend(chunk.lanes)
        dropped += chunk.dropped
        spans += [
            LiveSpan(
                PHASES[span.phase],
                span.thread,
                span.request,
                span.rows,
                span.start_ns,
                span.duration_ns,
                lanes[span.lane],
                span.trace_id,
            )
            for span in chunk.spans
        ]
    return LiveTrace(tuple(spans), threads, dropped)
