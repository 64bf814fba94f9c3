# SPDX-License-Identifier: Apache-2.0
"""Traces of live traffic: starts the engine's recording, waits on the asyncio loop, and encodes the spans as messages
on a thread. Traced requests pay only for reading a clock."""

from __future__ import annotations

import asyncio

from fused_mlp.protos import admin_pb2 as pb
from fused_mlp.service import _engine
from fused_mlp.service.errors import InvalidInput, NotReady

MAX_SECONDS = 60.0
DEFAULT_SPANS, MAX_SPANS = 100_000, 1_000_000  # of each thread
# Spans in one message: a quarter of a megabyte, which the loop serializes in less than a millisecond.
_CHUNK = 5_000
_PHASES = {phase.name.lower(): phase.number for phase in pb.TracePhase.DESCRIPTOR.values}


def check_trace(seconds: float, spans_per_thread: int) -> None:
    if not 0 < seconds <= MAX_SECONDS:
        raise InvalidInput(f"seconds: expected more than 0 and at most {MAX_SECONDS:g}, got {seconds:g}")
    if spans_per_thread > MAX_SPANS:
        raise InvalidInput(f"spans_per_thread: expected at most {MAX_SPANS}, got {spans_per_thread}")


async def take_trace(seconds: float, spans_per_thread: int) -> list[pb.TraceChunk]:
    """Recording also stops when the caller disconnects."""
    if not _engine.start_trace(spans_per_thread or DEFAULT_SPANS):
        raise NotReady("a trace is already being recorded: try again when it ends")
    try:
        await asyncio.sleep(seconds)
    finally:
        # Shielded: a caller that disconnects at this very moment must not leave the recording on.
        chunks = await asyncio.shield(asyncio.to_thread(_collect))
    return chunks


def _collect() -> list[pb.TraceChunk]:
    """Stops the recording and encodes it, which takes seconds for a million spans. Runs on its own thread, a few spans
    at a time, so that the loop gets the GIL in between."""
    trace = _engine.stop_trace()
    lanes: dict[str, int] = {}
    chunks = []
    start = 0
    while spans := trace.spans(start, _CHUNK):
        start += len(spans)
        chunk = pb.TraceChunk()
        for phase, thread, request, rows, begin, end, lane, trace_id in spans:
            chunk.spans.add(
                phase=_PHASES[phase],
                thread=thread,
                request=request,
                rows=rows,
                start_ns=begin,
                duration_ns=max(0, end - begin),
                lane=lanes.setdefault(lane, len(lanes)),
                trace_id=trace_id,
            )
        chunks.append(chunk)
    return [pb.TraceChunk(threads=trace.threads, lanes=list(lanes), dropped=trace.dropped), *chunks]
