# SPDX-License-Identifier: Apache-2.0
"""The load that balancers and autoscalers are told: shares of the cores over a window, rates by model, and streams of
reports that end with the service."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from fused_mlp.protos import orca_pb2
from fused_mlp.service import _engine
from fused_mlp.service.fronts.rpc import Call
from fused_mlp.service.handlers import orca
from fused_mlp.service.handlers.guard import Guard
from fused_mlp.service.observe import utilisation
from fused_mlp.service.observe.utilisation import (
    WINDOW,
    Load,
    LoadMeter,
    ModelLoads,
    ThreadTime,
    Totals,
    thread_times,
)

SECOND = 10**9


class Rig:
    """A meter of two cores whose time, threads and models the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.threads: Mapping[int, ThreadTime] = {1: ThreadTime(0, 0)}
        self.models: dict[str, Totals] = {}
        self.fill = 0.0
        self.meter = LoadMeter(
            2, lambda: ModelLoads(dict(self.models), self.fill), lambda: self.threads, lambda: self.now_s
        )
        self.meter.sample()

    def after(self, seconds: float, **threads: tuple[float, float]) -> Load:
        """Threads by number: seconds of CPU, and with the time they waited, since the start."""
        self.now_s += seconds
        if threads:
            self.threads = {
                int(name[1:]): ThreadTime(int(cpu * SECOND), int(busy * SECOND))
                for name, (cpu, busy) in threads.items()
            }
        self.meter.sample()
        return self.meter.load


def test_busy_share_counts_the_time_that_threads_wait_for_a_core() -> None:
    seen = Rig().after(1, t1=(0.5, 1.0), t2=(0.5, 2.0))
    assert (seen.cpu, seen.busy) == (0.5, 1.5)


def test_a_thread_that_ended_takes_nothing_from_the_window() -> None:
    rig = Rig()
    rig.after(1, t1=(1.0, 1.0), t2=(1.0, 1.0))
    assert rig.after(1, t1=(2.0, 2.0)).cpu == 0.75  # 3 s of 2 x 2


def test_the_window_forgets() -> None:
    rig = Rig()
    assert rig.after(1, t1=(2.0, 2.0)).cpu == 1
    for _ in range(WINDOW - 1):
        assert rig.after(1).cpu > 0
    assert rig.after(1).cpu == 0


def test_threads_of_this_process_are_measured() -> None:
    before = thread_times()[threading.get_native_id()]
    for _ in range(1000):
        thread_times()
    after = thread_times()[threading.get_native_id()]
    assert after.cpu_ns > before.cpu_ns
    assert after.busy_ns >= after.cpu_ns


def test_a_thread_is_busy_while_it_waits_for_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "schedstat").write_text("5 7 1\n")
    monkeypatch.setattr(utilisation, "_TASKS", str(tmp_path))
    assert thread_times() == {os.getpid(): ThreadTime(5, 12)}


def test_cpu_time_of_the_process_stands_in_where_the_kernel_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / str(os.getpid())).mkdir()
    monkeypatch.setattr(utilisation, "_TASKS", str(tmp_path))
    (only,) = thread_times().values()
    assert only.busy_ns == only.cpu_ns > 0


def test_threads_that_leave_the_cores_to_requests_do_not_count() -> None:
    if os.getpriority(os.PRIO_PROCESS, 0) >= 14:
        pytest.skip("this process runs at a low priority itself: threads cannot be told apart")
    lowered = threading.Thread(target=lambda: (_engine.lower_thread_priority(), seen.update(thread_times())))
    seen: dict[int, ThreadTime] = {}
    lowered.start()
    lowered.join()
    assert threading.get_native_id() in seen
    assert lowered.native_id not in seen


def stream(rig: Rig, seconds: int = 0):
    (rpc,) = orca.rpcs(rig.meter, Guard())
    duration = orca_pb2.OrcaLoadReportRequest.Duration(seconds=seconds)
    return rpc.handle(orca_pb2.OrcaLoadReportRequest(report_interval=duration), Call({}))


async def test_report_has_rates_and_the_busiest_models() -> None:
    rig = Rig()
    rig.models = {f"m{n}": Totals(10, 0, 0) for n in range(100)}
    reports = stream(rig)
    waiting = asyncio.ensure_future(anext(reports))
    await asyncio.sleep(0)
    # 100 requests of each per second, of which one failed; the last models compute the longest.
    rig.models = {f"m{n}": Totals(110, 1, n * SECOND // 1000) for n in range(100)}
    rig.fill = 0.25
    rig.after(1, t1=(1.0, 1.0))
    report = orca_pb2.OrcaLoadReport.FromString(await waiting)
    assert (report.cpu_utilization, report.application_utilization) == (0.5, 0.75)
    assert (report.rps_fractional, report.eps) == (10_000, 100)
    assert report.named_metrics["queue_fill"] == 0.25
    assert report.named_metrics["rps.m99"] == 100
    assert report.named_metrics["compute.m99"] == pytest.approx(0.099 / 2)
    told = {name for name in report.named_metrics if name.startswith("rps.")}
    assert told == {f"rps.m{n}" for n in range(100 - orca.MAX_MODELS, 100)}


async def test_reports_come_at_the_interval_asked_for_and_never_faster_than_samples() -> None:
    rig = Rig()

    async def times(reports) -> list[float]:
        return [rig.now_s async for _ in reports]

    slow, fast = (asyncio.create_task(times(stream(rig, seconds))) for seconds in (3, 0))
    for number in range(9):
        await turns()
        rig.after(1.1 if number % 2 else 0.9)
    await turns()
    rig.meter.stop()
    assert [round(at_s) for at_s in await slow] == [101, 104, 107]
    assert len(await fast) == 9


async def turns() -> None:
    """Enough of the loop for every task to wait again."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_streams_are_bounded_and_end_with_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orca, "MAX_STREAMS", 1)
    rig = Rig()
    reports = stream(rig)
    waiting = asyncio.ensure_future(anext(reports))
    await turns()
    rig.after(1)
    await waiting
    with pytest.raises(orca.Overloaded, match="at most 1 streams"):
        await anext(stream(rig))
    waiting = asyncio.ensure_future(anext(reports))
    await asyncio.sleep(0)
    rig.meter.stop()
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert rig.meter.watchers == 0
    with pytest.raises(StopAsyncIteration):
        await anext(stream(rig))


def test_process_that_was_stopped_says_for_how_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utilisation, "SAMPLE_EVERY_S", 0.0)
    rig = Rig()

    async def stop_for(seconds: float) -> None:
        running = asyncio.create_task(rig.meter.run())
        await asyncio.sleep(0)
        rig.now_s += seconds
        await asyncio.sleep(0)
        running.cancel()

    asyncio.run(stop_for(42))
    assert "did not run for 42 s" in caplog.text
