"""Traces of live traffic: starts the engine's recording, waits, and encodes the spans as messages. Runs on the asyncio
loop. Traced requests pay only for reading a clock."""

from __future__ import annotations

import asyncio

from fused_mlp.protos import admin_pb2 as pb
from fused_mlp.service import _engine
from fused_mlp.service.errors import InvalidInput, NotReady

MOST_SECONDS = 60.0
DEFAULT_SPANS, MOST_SPANS = 100_000, 1_000_000  # of each thread
# Spans in one message: well below gRPC's default limit of 4 MB.
_CHUNK = 20_000
_PHASES = {phase.name.lower(): phase.number for phase in pb.TracePhase.DESCRIPTOR.values}


def check_trace(seconds: float, spans_per_thread: int) -> None:
    if not 0 < seconds <= MOST_SECONDS:
        raise InvalidInput(f"seconds: expected more than 0 and at most {MOST_SECONDS:g}, got {seconds:g}")
    if spans_per_thread > MOST_SPANS:
        raise InvalidInput(f"spans_per_thread: expected at most {MOST_SPANS}, got {spans_per_thread}")


async def take_trace(seconds: float, spans_per_thread: int) -> list[pb.TraceChunk]:
    """Recording also stops when the caller disconnects."""
    if not _engine.start_trace(spans_per_thread or DEFAULT_SPANS):
        raise NotReady("a trace is being taken already: try again when it is over")
    try:
        await asyncio.sleep(seconds)
    finally:
        spans, threads, dropped = _engine.stop_trace()
    return await asyncio.to_thread(_chunks, spans, threads, dropped)


def _chunks(
    spans: list[tuple[str, int, int, int, int, int, str]], threads: dict[int, str], dropped: int
) -> list[pb.TraceChunk]:
    lanes = {name: index for index, name in enumerate(dict.fromkeys(span[-1] for span in spans))}
    first = pb.TraceChunk(threads=threads, lanes=list(lanes), dropped=dropped)
    chunks = [first]
    for start in range(0, len(spans), _CHUNK):
        chunk = pb.TraceChunk()
        for phase, thread, request, rows, begin, end, lane in spans[start : start + _CHUNK]:
            chunk.spans.add(
                phase=_PHASES[phase],
                thread=thread,
                request=request,
                rows=rows,
                start_ns=begin,
                duration_ns=max(0, end - begin),
                lane=lanes[lane],
            )
        chunks.append(chunk)
    return chunks
