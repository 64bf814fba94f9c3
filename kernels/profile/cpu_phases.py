# SPDX-License-Identifier: Apache-2.0
"""Adds the phases that the CPU kernel recorded to the profiler's trace, on the tracks of its threads, named after the
program's steps. The kernel uses the steady clock and the trace wall time, so their offset is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from fused_mlp.kernels.profile.trace_events import Event, Node, forward_passes

try:
    from fused_mlp.kernels import _cpu
except ImportError:
    _cpu = None  # type: ignore[assignment]

CATEGORY = "cpu_kernel"
_MAX_SPANS = 200_000


@dataclass(frozen=True)
class PhaseSpan:
    """One phase of one operation of the kernel. Times in nanoseconds of the steady clock."""

    phase: str
    operation: int
    thread: int
    rows: int
    in_features: int
    columns: int
    start_ns: int
    end_ns: int
    product_ns: int
    epilogue_ns: int
    tiles: int
    flops: int


@dataclass
class Recording:
    spans: list[PhaseSpan] = field(default_factory=list)
    dropped: int = 0
    wall_offset_ns: int = 0  # wall time minus steady time


@contextmanager
def recorded_phases() -> Iterator[Recording]:
    """Records the phases of CPU kernels. Stays empty if the compiled module was not built."""
    recording = Recording()
    if _cpu is None:
        yield recording
        return
    _cpu.start_recording_phases(_MAX_SPANS)
    try:
        yield recording
    finally:
        spans, recording.dropped = _cpu.stop_recording_phases()
        recording.spans = [PhaseSpan(*span) for span in spans]
        recording.wall_offset_ns = _wall_offset_ns()


def _wall_offset_ns() -> int:
    """The best of several tries: the one that read both clocks closest together."""
    tries = []
    for _ in range(9):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        tries.append((after - before, wall - (before + after) // 2))
    return min(tries)[1]


def merge(trace: Event, recording: Recording, strategy: str, names: Sequence[str]) -> None:
    """Adds the spans to the trace, in place. Spans before the start of the trace are left out, except packing. `names`:
    of the kernel's operations."""
    pids = [event["pid"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    if not pids:
        return
    offset_ns = recording.wall_offset_ns - int(trace.get("baseTimeNanoseconds", 0))
    known = {event["tid"] for event in trace["traceEvents"] if event.get("name") == "thread_name"}
    first = min(float(event["ts"]) for event in trace["traceEvents"] if event.get("ph") == "X")
    for span in recording.spans:
        start = (span.start_ns + offset_ns) / 1000
        if start < first and span.phase != "pack":
            continue
        if span.thread not in known:
            known.add(span.thread)
            args = {"name": f"thread {span.thread} (fused kernel helper)"}
            trace["traceEvents"].append(
                {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": pids[0],
                    "tid": span.thread,
                    "ts": start,
                    "args": args,
                }
            )
        for event in _events(span, start, strategy, names):
            trace["traceEvents"].append(
                {"ph": "X", "cat": CATEGORY, "pid": pids[0], "tid": span.thread, **event}
            )


def step_times(trace: Event) -> dict[str, float]:
    """Microseconds of each step of the kernel on the calling thread, in the median pass of each."""
    passes = []
    for root in forward_passes(trace):
        times: dict[str, float] = {}
        for node in _outermost(root):
            times[node.name] = times.get(node.name, 0.0) + node.us
        passes.append(times)
    names = dict.fromkeys(name for times in passes for name in times)
    return {name: median(times.get(name, 0.0) for times in passes) for name in names}


def _outermost(node: Node) -> Iterator[Node]:
    for child in node.children:
        if child.category == CATEGORY:
            yield child
        else:
            yield from _outermost(child)


def _label(span: PhaseSpan, names: Sequence[str]) -> str:
    name = names[span.operation] if span.operation < len(names) else f"operation {span.operation}"
    return f"pack {name}" if span.phase == "pack" else name


def _events(span: PhaseSpan, start: float, strategy: str, names: Sequence[str]) -> Iterator[Event]:
    us = (span.end_ns - span.start_ns) / 1000
    name = _label(span, names)
    args: Event = {"rows": span.rows, "in": span.in_features, "columns": span.columns}
    if span.flops:
        args |= {
            "flops": span.flops,
            "strategy": strategy,
            "tiles": span.tiles,
        }
    yield {"name": name, "ts": start, "dur": us, "args": args}
    # Product and epilogue alternate from tile to tile. The trace shows the sum of each, one after the other.
    summed = {"tiles": span.tiles, "note": "summed over the tiles, between which they alternate"}
    if span.product_ns:
        in_registers = summed | {"includes": "bias, and relu, which are applied in the registers of the tile"}
        yield {"name": "gemm", "ts": start, "dur": span.product_ns / 1000, "args": in_registers}
    if span.epilogue_ns:
        begin = start + span.product_ns / 1000
        yield {"name": "epilogue", "ts": begin, "dur": span.epilogue_ns / 1000, "args": summed}
