# SPDX-License-Identifier: Apache-2.0
"""Goodput under overload: loads are multiples of a capacity that is measured open loop, and only answers in time
count. Refusals at admission and requests that expired in the queue are counted apart."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bench.docs.figures.operations import overload as figure
from bench.docs.registry import Results
from bench.serving import overload


@dataclass(frozen=True)
class Peer(overload.Callers):
    """A system that answers so many requests per second, one after the other."""

    capacity: float = 500.0
    asked: Callable[[tuple[float, float], int], Any] = lambda *_: None
    fails: int = 0  # probes that are refused before it has worked off its queue
    probes: list[int] = field(default_factory=list)

    def send(self, *phases: tuple[float, float]) -> list[dict[str, Any]]:
        reports = []
        for rate, seconds in phases:
            (deadline, *_) = self.deadlines_ms
            self.asked((rate, seconds), deadline)
            sent = round(rate * seconds)
            # Clients that leave take their requests along: what is answered in time is what fits.
            good = min(sent, round(self.capacity * (seconds + deadline / 1e3)))
            refused = {} if good == sent else {"4": sent - good}
            if deadline == overload.PROBE_MS and len(self.probes) < self.fails:
                self.probes.append(1)
                good, refused = 0, {"429": sent}
            reports.append(
                {
                    "sent": sent, "seconds": seconds, "sent_s": seconds, "good": good, "late": 0, "refused": refused,
                    "answered_s": max(seconds, good / self.capacity), "told": 0, "expired": 0, "good_ms": [1, 2, 3],
                    "refused_ms": [0.1, 0.2, 0.3], "expired_ms": None,
                }
            )  # fmt: skip
        return reports


def peer(**fields: Any) -> Any:
    system: Any = SimpleNamespace(name="peer", metrics_url=None)
    return Peer(system, (), 1, (50,), **fields)


def test_goodput_is_answers_in_time_over_the_capacity_and_every_run_begins_idle() -> None:
    asked: list[tuple[float, int]] = []
    callers = peer(asked=lambda phase, deadline: asked.append((phase[0], deadline)))
    runs = overload.measure(callers, overload.LOADS, 200.0, 2.0)
    assert [rate for rate, deadline in asked if deadline == 50] == [200 * load for load in overload.LOADS]
    assert [deadline for _, deadline in asked] == [overload.PROBE_MS, 50] * len(overload.LOADS)
    # 500 per second, also where the last is answered after the last was sent.
    assert [run["goodput"] for run in runs] == pytest.approx([0.5, 0.9, 1.2, 2.0, 2.5, 2.5], rel=0.01)


def test_capacity_is_what_is_answered_open_loop_under_a_little_overload() -> None:
    asked: list[tuple[float, int]] = []
    callers = peer(asked=lambda phase, deadline: asked.append((phase[0], deadline)))
    assert overload.measure_capacity(callers, 2.0) == pytest.approx(500)
    loads = [rate for rate, deadline in asked if deadline == overload.CAPACITY_DEADLINE_MS]
    assert loads[-overload.CAPACITY_RUNS :] == pytest.approx([600] * overload.CAPACITY_RUNS)


def test_a_server_that_still_refuses_is_waited_for() -> None:
    callers = peer(fails=3)
    overload.settle(callers)
    assert len(callers.probes) == 3


def test_a_server_that_refuses_for_ever_says_what_it_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overload, "PATIENCE_S", 0)
    with pytest.raises(AssertionError, match=r"peer: .* is refused: \{'429': 5\}"):
        overload.settle(peer(fails=10**9))


def test_refused_at_admission_and_expired_are_apart() -> None:
    report = {"refused": {"4": 10, "8": 2, "gave up": 3, "broken: EOF": 1}, "expired": 4}
    assert overload.turned_away(report) == {"refused_at_admission": 8, "expired_or_gave_up": 7}


def test_recovery_counts_the_first_100_ms_after_each_overload() -> None:
    phases: list[tuple[float, float]] = []
    found = overload.measure_recovery(peer(asked=lambda phase, _: phases.append(phase)), 500.0)
    assert phases[1:4] == [(5000, 0.5), (450, 0.1), (450, 0.4)]  # after the probe
    assert (found["sent"], found["good"], found["goodput"]) == (180, 180, 1)


def test_command_line_of_the_generator_names_bodies_deadlines_and_what_callers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return SimpleNamespace(returncode=0, stdout='{"sent": 1}\n{"sent": 2}\n', stderr="")

    monkeypatch.setattr(overload.subprocess, "run", run)
    system: Any = SimpleNamespace(name="peer", port=1, protocol="Predict")
    callers = overload.Callers(system, (tmp_path / "a", tmp_path / "b"), 1, (10, 200), cancel=False)
    assert callers.send((100.0, 1.0), (50.0, 0.5)) == [{"sent": 1}, {"sent": 2}]
    (command,) = commands
    assert {f"-body={tmp_path}/a", f"-body={tmp_path}/b", "-cancel=false", "10,200"} <= set(command)
    assert command[command.index("-phases") + 1] == "100.000x1,50.000x0.5"


def test_terminal_and_page_show_how_situations_refuse() -> None:
    callers = peer()
    runs = overload.measure(callers, (1.2, 3.0), 400.0, 2.0)
    result = {
        **Results()["overload"],
        "target_queue_ms": 200,
        "systems": {"fused-mlp": {"capacity": 400.0, "runs": []}},
        "deadlines_ms": [],
        "situations": {
            "two models": {"capacity": 400.0, "runs": runs},
            "recovery": {"capacity": 400.0, "runs": [overload.measure_recovery(callers, 500.0)]},
        },
    }
    console = Console(file=io.StringIO(), width=180, record=True)
    console.print(overload.terminal_table(result))
    assert "0.20 ms" in console.export_text()
    page = figure(Results(fresh={"overload": result}))
    assert "| two models | 3x | 125% | 57.3% | 0.20 ms | 0.0% | 2.00 ms |" in page
    assert "after half a second of ten times the capacity, 100% of the requests" in page


def test_a_server_is_started_on_its_cores_and_the_benchmark_goes_on_with_all() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    with overload.on_cores({core}):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
