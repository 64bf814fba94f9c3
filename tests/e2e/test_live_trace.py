# SPDX-License-Identifier: Apache-2.0
"""A trace of real traffic over the admin port: every phase of a request, bounded and one at a time."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fused_mlp.service import _engine
from fused_mlp.service.cli.commands.live_profile import profile_live
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.admin import AdminClient
from fused_mlp.service.client.live_trace import LiveTrace
from fused_mlp.service.errors import NotReady
from fused_mlp.service.observe.trace import take_trace
from fused_mlp.service.reports.profile.live import perfetto_trace, phase_times
from tests.support.fronts import both_fronts
from tests.support.server import Server, free_port

X = np.ones((3, 64), np.float32)

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(scope="module")
def admin_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def traced(front: str, admin_port: int) -> Iterator[Server]:
    with Server(front=front, admin_port=admin_port) as running:
        yield running


@pytest.fixture(scope="module")
def admin(traced: Server, admin_port: int) -> Iterator[AdminClient]:
    with AdminClient(f"127.0.0.1:{admin_port}") as connected:
        yield connected


def trace_under_load(admin: AdminClient, client: Client, seconds: float = 0.5, spans: int = 0) -> LiveTrace:
    """Requests until the trace is over: one cannot end before the other has begun."""
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(admin.trace, seconds, spans)
        while not taken.done():
            client.predict("digits", X, metadata={"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-00"})
        return taken.result()


@pytest.fixture(scope="module")
def live(admin: AdminClient, traced: Server) -> LiveTrace:
    with Client(traced.target) as client:
        return trace_under_load(admin, client)


@both_fronts
def test_every_request_has_every_phase(live: LiveTrace) -> None:
    phases: dict[int, set[str]] = {}
    for span in live.spans:
        phases.setdefault(span.request, set()).add(span.phase)
    assert phases.pop(0) == {"kernel"}
    assert live.dropped == 0
    whole = [
        found for found in phases.values() if found >= {"decode", "queue", "gather", "scatter", "encode"}
    ]
    # A request that was under way when the trace ended lacks its end.
    assert len(whole) >= max(1, len(phases) - 1)
    assert all(span.rows == 3 and span.lane == "digits/1/fused" for span in live.spans)


def test_requests_have_the_trace_id_of_their_caller(live: LiveTrace) -> None:
    assert {span.trace_id for span in live.spans if span.phase == "decode"} == {TRACE_ID}
    events = perfetto_trace(live)["traceEvents"]
    named = [e for e in events if e["ph"] == "b" and e["name"] == "request 1"]
    assert [event["args"] for event in named] == [{"trace_id": TRACE_ID}]


@both_fronts
def test_phases_follow_each_other(live: LiveTrace) -> None:
    by_request: dict[int, dict[str, int]] = {}
    for span in live.spans:
        by_request.setdefault(span.request, {})[span.phase] = span.start_ns
    by_request.pop(0)
    for starts in by_request.values():
        if len(starts) == 5:
            assert starts["queue"] <= starts["gather"] <= starts["scatter"] <= starts["encode"]
            assert starts["decode"] <= starts["gather"]


def test_perfetto_trace_has_a_track_for_each_thread(live: LiveTrace) -> None:
    trace = json.loads(json.dumps(perfetto_trace(live)))
    events = trace["traceEvents"]
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in spans} == named
    assert {event["name"] for event in spans} == {"decode", "gather", "kernel", "scatter", "encode"}
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)
    begun = [event for event in events if event["ph"] == "b"]
    assert len(begun) == len([event for event in events if event["ph"] == "e"])
    assert [each.phase for each in phase_times(live)] == [
        "decode",
        "queue",
        "gather",
        "kernel",
        "scatter",
        "encode",
    ]


def test_a_full_buffer_counts_what_it_drops(admin: AdminClient, traced: Server) -> None:
    with Client(traced.target) as client:
        trace = trace_under_load(admin, client, seconds=0.3, spans=4)
    assert trace.dropped > 0
    assert len(trace.spans) == 4 * len(trace.threads)


async def test_a_second_trace_is_refused_and_one_that_nobody_waits_for_ends() -> None:
    first = asyncio.create_task(take_trace(60, 10))
    await asyncio.sleep(0)  # lets it begin
    assert _engine.tracing()
    with pytest.raises(NotReady, match="a trace is already being recorded"):
        await take_trace(1, 10)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not _engine.tracing()


@pytest.mark.parametrize("seconds", [0, -1, 61])
def test_a_length_that_cannot_be_is_refused(admin: AdminClient, seconds: float) -> None:
    with pytest.raises(PredictError, match="seconds: expected more than 0 and at most 60"):
        admin.trace(seconds)


def test_nothing_is_recorded_when_nobody_asked() -> None:
    assert not _engine.tracing()
    _engine.start_trace(10)
    trace = _engine.stop_trace()
    assert (trace.spans(0, 10), trace.threads, trace.dropped) == ([], {}, 0)


async def test_a_trace_is_collected_in_parts_off_the_asyncio_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    collected_on: list[int] = []
    stop = _engine.stop_trace

    def stop_trace() -> _engine.Trace:
        collected_on.append(threading.get_ident())
        return stop()

    monkeypatch.setattr(_engine, "stop_trace", stop_trace)
    taken = asyncio.create_task(take_trace(0.001, 20_000))
    await asyncio.sleep(0)  # lets it begin
    for number in range(12_000):
        _engine.record_span(_engine.TracePhase.kernel, number, 1, number, number + 1, f"lane {number % 3}")
    first, *parts = await taken
    assert collected_on != [threading.get_ident()]
    assert len(collected_on) == 1
    assert sum(len(part.spans) for part in parts) == 12_000
    assert max(len(part.spans) for part in parts) <= 5_000
    lanes = [first.lanes[span.lane] for part in parts for span in part.spans]
    assert lanes == [f"lane {number % 3}" for number in range(12_000)]


def test_command_writes_the_trace_and_says_the_times(
    traced: Server, admin: AdminClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(traced.target) as client, ThreadPoolExecutor(1) as pool:
        run = pool.submit(profile_live, admin, 0.4, tmp_path, True)
        while not run.done():
            client.predict("digits", X)
        run.result()
    said = json.loads(capsys.readouterr().out)
    assert said["requests"] > 0
    assert json.loads((tmp_path / "live.json").read_text())["traceEvents"]
