# SPDX-License-Identifier: Apache-2.0
"""A trace of live traffic as a Perfetto file, with one track per thread, and as a table of the phases of a request."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fused_mlp.service.client.live_trace import PHASES, LiveSpan, LiveTrace
from fused_mlp.service.reports.profile.wording import microseconds
from fused_mlp.service.reports.terminal import plain_table

_PROCESS, _REQUESTS = 1, 2


@dataclass(frozen=True)
class PhaseTimes:
    """One phase over all requests, in microseconds."""

    phase: str
    count: int
    mean: float
    median: float
    p99: float


def perfetto_trace(trace: LiveTrace) -> dict[str, Any]:
    """Chrome's trace format. Requests overlap, so they get their own process, which includes their time in the
    queue."""
    if not trace.spans:
        return {"traceEvents": [], "displayTimeUnit": "ms"}
    origin = min(span.start_ns for span in trace.spans)
    events: list[dict[str, Any]] = [_name("process_name", _PROCESS, 0, "fused-mlp server")]
    events.append(_name("process_name", _REQUESTS, 0, "requests"))
    for thread, name in sorted(trace.threads.items()):
        events.append(_name("thread_name", _PROCESS, thread, f"{name} ({thread})"))
    for span in trace.spans:
        if span.phase != "queue":
            events.append(_complete(span, origin))
    for number, spans in _by_request(trace).items():
        events += _request(number, spans, origin)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"spans_dropped": trace.dropped}}


def phase_times(trace: LiveTrace) -> list[PhaseTimes]:
    """In the order of a request's life. Encoding during the scatter phase counts as encoding only."""
    taken: dict[str, list[float]] = defaultdict(list)
    for span in trace.spans:
        if span.phase == "kernel":
            taken["kernel"].append(span.duration_ns / 1000)
    for spans in _by_request(trace).values():
        phases = {span.phase: span for span in spans}
        for name, span in phases.items():
            us = span.duration_ns / 1000
            inner = phases.get("encode")
            if name == "scatter" and inner is not None and span.start_ns <= inner.start_ns <= span.end_ns:
                us -= inner.duration_ns / 1000
            taken[name].append(max(0.0, us))
    return [_times(name, sorted(taken[name])) for name in PHASES if taken[name]]


def live_view(trace: LiveTrace, seconds: float) -> RenderableType:
    if not trace.spans:
        return Text(f"no request arrived within {seconds:g} s: nothing to show")
    batches = sum(span.phase == "kernel" for span in trace.spans)
    head = f"{trace.requests:,} requests in {batches:,} batches, {trace.requests / seconds:,.0f} requests/s"
    table = plain_table("phase", "times", "mean us", "median us", "p99 us", left=("phase",))
    for each in phase_times(trace):
        numbers = (microseconds(value) for value in (each.mean, each.median, each.p99))
        table.add_row(each.phase, f"{each.count:,}", *numbers)
    parts: list[RenderableType] = [Text(head, "bold"), table]
    if trace.dropped:
        lost = f"{trace.dropped:,} spans were dropped because the buffer was full: trace for fewer seconds"
        parts.append(Text(lost, "yellow"))
    return Group(*parts)


def _times(name: str, values: list[float]) -> PhaseTimes:
    middle, high = values[len(values) // 2], values[min(len(values) - 1, int(len(values) * 0.99))]
    return PhaseTimes(name, len(values), sum(values) / len(values), middle, high)


def _by_request(trace: LiveTrace) -> dict[int, list[LiveSpan]]:
    found: dict[int, list[LiveSpan]] = defaultdict(list)
    for span in trace.spans:
        if span.request:
            found[span.request].append(span)
    return found


def _complete(span: LiveSpan, origin: int) -> dict[str, Any]:
    args: dict[str, Any] = {"rows": span.rows, "lane": span.lane}
    if span.request:
        args["request"] = span.request
    if span.trace_id:
        args["trace_id"] = span.trace_id
    return {
        "ph": "X",
        "cat": span.phase,
        "name": span.phase,
        "pid": _PROCESS,
        "tid": span.thread,
        "ts": (span.start_ns - origin) / 1000,
        "dur": span.duration_ns / 1000,
        "args": args,
    }


def _request(number: int, spans: list[LiveSpan], origin: int) -> list[dict[str, Any]]:
    """From the first span of a request to its last, its time in the queue included."""
    start, end = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    pairs = [(f"request {number}", start, end)]
    pairs += [("queue", span.start_ns, span.end_ns) for span in spans if span.phase == "queue"]
    common = {"cat": "request", "id": number, "pid": _REQUESTS, "tid": 0}
    known = [span.trace_id for span in spans if span.trace_id]
    args = {"args": {"trace_id": known[0]}} if known else {}
    begins = [
        {"ph": "b", "name": name, "ts": (at - origin) / 1000, **common, **args} for name, at, _ in pairs
    ]
    ends = [
        {"ph": "e", "name": name, "ts": (at - origin) / 1000, **common} for name, _, at in reversed(pairs)
    ]
    return [*begins, *ends]


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
