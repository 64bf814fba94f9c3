# SPDX-License-Identifier: Apache-2.0
"""Goodput under overload: `python -m bench.serving.overload`. An open-loop generator in Go (bench/serving/open_loop)
on a core of its own sends 0.5 to 10 times what the server answers at most, with deadlines, and counts the answers that
came in time. One server is up at a time; its loads are multiples of its own capacity. Every system is measured on the
curve (one model, one core, callers that leave at their deadline), this server in named situations too."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.provenance import describe_run, write_result
from bench.serving.load import PROTOCOLS, verify
from bench.serving.servers import FAILURES
from bench.serving.systems import (
    MOSEC,
    PYTHON,
    ROOT,
    SHAPES,
    TRITON,
    System,
    mosec,
    peer_versions,
    save_random,
    service,
    triton_server,
)
from fused_mlp.service.settings.settings import Settings

RESULTS = Path(__file__).parent.parent / "results" / "overload.json"
SOURCE = Path(__file__).parent / "open_loop" / "main.go"
GENERATOR = ROOT / "build" / "open_loop" / "open_loop"
GO_LIBRARIES = "/usr/share/gocode"  # Debian: golang-golang-x-net-dev
MODEL, ROWS = "wide", 16
CONNECTIONS = 4
LOADS = (0.5, 0.9, 1.2, 2.0, 3.0, 10.0)
DEADLINES_MS = (10, 50, 200)
CAPACITY_RUNS = 3
CAPACITY_LOAD, CAPACITY_DEADLINE_MS = 1.2, 1000
PROBE_MS = 100  # an idle server answers the probe within this time
PATIENCE_S = 60
# Recovery: 10x, then the first 100 ms at 0.9x, which are what is judged, then time to end the round as it began.
RECOVERY_LOAD, RECOVERY_PHASES, RECOVERY_ROUNDS = 0.9, ((10.0, 0.5), (0.9, 0.1), (0.9, 0.4)), 4
OURS, BASELINE = "fused-mlp", "grpc.aio with a batcher, torch"

Start = Callable[[Path, Path], System]
SYSTEMS: dict[str, Start] = {
    OURS: lambda repository, _: service(OURS, repository, False, front="native"),
    MOSEC: lambda repository, folder: mosec(repository, MODEL, False, folder),
    TRITON: lambda repository, folder: triton_server(repository, MODEL, False, folder),
    BASELINE: lambda repository, _: System(
        BASELINE, [PYTHON, "-m", "bench.serving.baseline", str(repository), MODEL]
    ),
}


def build_generator() -> None:
    environment = os.environ | {
        "GO111MODULE": "off", "GOPATH": GO_LIBRARIES, "GOFLAGS": "", "GOCACHE": str(GENERATOR.parent / "cache"),
    }  # fmt: skip
    command = ["go", "build", "-o", str(GENERATOR), str(SOURCE)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("go is missing (Debian: golang-go, golang-golang-x-net-dev)") from None
    if done.returncode != 0:
        raise SystemExit(
            f"the load generator could not be built (Debian: golang-golang-x-net-dev):\n{done.stderr}"
        )


@dataclass(frozen=True)
class Situation:
    """The differences from the curve."""

    models: tuple[str, ...] = (MODEL,)
    rows: int = ROWS
    cores: int = 1  # of the server
    deadlines_ms: tuple[int, ...] = (50,)  # 0: none
    cancel: bool = True
    loads: tuple[float, ...] = (1.2, 3.0, 10.0)


RECOVERY = "recovery"
SITUATIONS = {
    # The generator cannot send ten times what a small model answers.
    "small model": Situation(models=("digits",), rows=128, loads=(1.2, 2.0)),
    "mixed deadlines": Situation(deadlines_ms=(10, 50, 200)),
    "two models": Situation(models=(MODEL, "wide-2")),
    "two cores": Situation(cores=2, loads=(1.2, 3.0)),
    "waiting clients": Situation(cancel=False),
    "no deadline": Situation(deadlines_ms=(0,)),
    RECOVERY: Situation(),
}


@contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Processes started in this context run on those cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Callers:
    """The load that the generator sends to a system."""

    system: System
    bodies: tuple[Path, ...]
    core: int
    deadlines_ms: tuple[int, ...]
    cancel: bool = True

    def send(self, *phases: tuple[float, float]) -> list[dict[str, Any]]:
        """Requests per second and seconds of each phase; one report for each."""
        protocol = PROTOCOLS[self.system.protocol]
        content_type = next(h.partition(": ")[2] for h in protocol.headers if h.startswith("content-type"))
        command = [
            "taskset", "-c", str(self.core), str(GENERATOR),
            "-url", f"http://127.0.0.1:{self.system.port}{protocol.path}",
            *(f"-body={body}" for body in self.bodies), "-content-type", content_type,
            "-connections", str(CONNECTIONS), "-deadlines-ms", ",".join(map(str, self.deadlines_ms)),
            f"-cancel={str(self.cancel).lower()}", "-phases", ",".join(f"{r:.3f}x{s:g}" for r, s in phases),
            *(["-http1"] if protocol.http1 else []),
        ]  # fmt: skip
        environment = os.environ | {"GOMAXPROCS": "1"}
        patience = sum(seconds for _, seconds in phases) + PATIENCE_S
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=patience, check=False
        )
        assert done.returncode == 0, f"{self.system.name}: {done.stderr.strip()[-300:]}"
        return [json.loads(line) for line in done.stdout.splitlines()]


def answered_rate(report: dict[str, Any]) -> float:
    """Good answers per second. What is answered after the last request was sent is divided by that time too: the queue
    of a short run would flatter otherwise."""
    return float(report["good"] / max(report["seconds"], report["sent_s"], report["answered_s"]))


def settle(callers: Callers) -> None:
    """Waits until the server has worked off what the last run left behind."""
    probe = replace(callers, deadlines_ms=(PROBE_MS,), cancel=True)
    end = time.monotonic() + PATIENCE_S
    while True:
        (report,) = probe.send((50.0, 0.1))
        if report["good"] == report["sent"]:
            return
        assert time.monotonic() < end, (
            f"{callers.system.name}: {PATIENCE_S} s after a run a request still takes more than {PROBE_MS} ms or is "
            f"refused: {report['refused']}"
        )


def measure_capacity(callers: Callers, seconds: float) -> float:
    """Requests per second at most, open loop: the best answered rate under a little overload."""
    patient = replace(callers, deadlines_ms=(CAPACITY_DEADLINE_MS,), cancel=True)
    rate = 100.0
    while True:  # doubles until less is answered than sent
        (report,) = patient.send((rate, 0.3))
        best = answered_rate(report)
        if best < 0.8 * report["sent"] / report["sent_s"]:
            break
        assert report["sent_s"] < 1.5 * report["seconds"], (
            f"{callers.system.name}: the generator is slower than it"
        )
        rate *= 2
    found: list[float] = []
    # A first guess that was too low makes the runs too light: on, while the last one found much more.
    while len(found) < CAPACITY_RUNS or found[-1] > 1.1 * max(found[:-1]):
        settle(callers)
        (report,) = patient.send((CAPACITY_LOAD * max(found, default=best), 2 * seconds))
        found.append(answered_rate(report))
    return max(found)


def measure(
    callers: Callers, loads: tuple[float, ...], capacity: float, seconds: float
) -> list[dict[str, Any]]:
    """At each load. Every run begins with an idle server."""
    runs = []
    metrics = callers.system.metrics_url is not None
    for load in loads:
        settle(callers)
        wasted = callers.system.metric("fused_mlp_wasted_rows_total") if metrics else 0.0
        (report,) = callers.send((load * capacity, seconds))
        offered = report["sent"] / max(seconds, report["sent_s"]) / capacity
        run = {"load": load, "offered": offered, "goodput": answered_rate(report) / capacity, **kept(report)}
        if metrics:
            run["wasted_rows"] = callers.system.metric("fused_mlp_wasted_rows_total") - wasted
        runs.append(run)
    return runs


def kept(report: dict[str, Any]) -> dict[str, Any]:
    """Without times of the run itself, and what is empty."""
    stored = {k: v for k, v in report.items() if v and k not in ("seconds", "sent_s", "answered_s")}
    return stored | turned_away(report)


def turned_away(report: dict[str, Any]) -> dict[str, int]:
    """Refusals at admission, and requests that were accepted and expired in the queue, or whose caller left first."""
    refused: dict[str, int] = report["refused"]
    gone = refused.get("gave up", 0)
    by_status = sum(count for status, count in refused.items() if status.isdigit())
    return {
        "refused_at_admission": by_status - report["expired"],
        "expired_or_gave_up": report["expired"] + gone,
    }


def measure_recovery(callers: Callers, capacity: float) -> dict[str, Any]:
    """The share of requests in the first 100 ms after an overload that is answered in time."""
    settle(callers)
    reports = callers.send(*((load * capacity, s) for load, s in RECOVERY_PHASES * RECOVERY_ROUNDS))
    first = [{**report, **turned_away(report)} for report in reports[1 :: len(RECOVERY_PHASES)]]
    counts = ("sent", "good", "refused_at_admission", "expired_or_gave_up")
    total = {key: sum(report[key] for report in first) for key in counts}
    return {"load": RECOVERY_LOAD, "goodput": total["good"] / total["sent"], **total}


@contextmanager
def running(
    start: Start, repository: Path, folder: Path, situation: Situation = SITUATIONS[RECOVERY]
) -> Iterator[Callers]:
    """A server on the first cores; its callers have the next one if there is one, or share the last."""
    with on_cores(range(situation.cores)):
        started = start(repository, folder)
    with started as system:
        bodies = []
        for model in situation.models:
            verify(system, repository, model, situation.rows)
            body = folder / f"{model}-{system.protocol}.body"
            body.write_bytes(PROTOCOLS[system.protocol].body(model, situation.rows))
            bodies.append(body)
        core = min(situation.cores, (os.cpu_count() or 1) - 1)
        yield Callers(system, tuple(bodies), core, situation.deadlines_ms, situation.cancel)


def measure_curve(
    title: str, repository: Path, folder: Path, seconds: float, deadlines: tuple[int, ...], console: Console
) -> dict[str, Any]:
    """Started anew for each deadline: what ten times the capacity left behind would take many seconds."""
    found: dict[str, Any] = {"runs": []}
    for deadline in deadlines:
        with running(SYSTEMS[title], repository, folder) as callers:
            if "capacity" not in found:
                found["capacity"] = measure_capacity(callers, seconds)
            else:  # warms it up
                callers.send((0.5 * found["capacity"], 0.3))
            runs = measure(replace(callers, deadlines_ms=(deadline,)), LOADS, found["capacity"], seconds)
        found["runs"] += [{"deadline_ms": deadline, **run} for run in runs]
        shares = ", ".join(f"{run['load']:g}x {run['goodput']:.0%}" for run in runs)
        console.print(f"[dim]{title} ({found['capacity']:,.0f}/s), {deadline} ms: {shares}", highlight=False)
    return found


def measure_situation(
    name: str, repository: Path, folder: Path, seconds: float, console: Console
) -> dict[str, Any]:
    situation = SITUATIONS[name]
    with running(SYSTEMS[OURS], repository, folder, situation) as callers:
        capacity = measure_capacity(callers, seconds)
        runs = (
            [measure_recovery(callers, capacity)]
            if name == RECOVERY
            else measure(callers, situation.loads, capacity, seconds)
        )
    shares = ", ".join(f"{run['load']:g}x {run['goodput']:.0%}" for run in runs)
    console.print(f"[dim]{name} ({capacity:,.0f}/s): {shares}", highlight=False)
    return {"capacity": capacity, "runs": runs}


def terminal_table(result: dict[str, Any]) -> Table:
    table = Table(
        title="Goodput as a share of capacity; refused at admission and expired as shares of what was sent"
    )
    for head in (
        "system or situation",
        "load",
        "offered",
        "goodput",
        "refused",
        "p99",
        "expired",
        "answered, p99",
        "sent late, p99",
    ):
        table.add_column(head, justify="left" if head.startswith("system") else "right")
    found = [
        (f"{title}, {run['deadline_ms']} ms", run)
        for title, each in result["systems"].items()
        for run in each["runs"]
    ]
    found += [
        (name, run) for name, each in result["situations"].items() if name != RECOVERY for run in each["runs"]
    ]
    for name, run in found:
        refused, expired = (run[key] / run["sent"] for key in ("refused_at_admission", "expired_or_gave_up"))
        p99s = [
            f"{run[key][1]:.2f} ms" if key in run else "" for key in ("refused_ms", "good_ms", "behind_ms")
        ]
        table.add_row(
            name, f"{run['load']:g}x", f"{run['offered']:.2g}x", f"{run['goodput']:.0%}", f"{refused:.1%}", p99s[0],
            f"{expired:.1%}", *p99s[1:],
        )  # fmt: skip
    return table


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="of each run; runs for the capacity take twice as long"
    )
    parser.add_argument("--quick", action="store_true", help="one deadline, 0.5 seconds")
    parser.add_argument(
        "--only", nargs="*", choices=list(SYSTEMS), default=list(SYSTEMS), help="on the curve"
    )
    parser.add_argument(
        "--situations", nargs="*", choices=list(SITUATIONS), default=list(SITUATIONS), metavar="NAME",
        help=f"of this server, beside the curve: {', '.join(SITUATIONS)}; all unless named",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(given)
    deadlines = (50,) if options.quick else DEADLINES_MS
    seconds = 0.5 if options.quick else options.seconds
    console = Console(width=180, stderr=True)
    build_generator()
    systems: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("one", "all"):
            save_random(folder / each, MODEL)
        for model in {model for each in SITUATIONS.values() for model in each.models} - {MODEL}:
            save_random(folder / "all", model)
        for title in options.only:
            try:
                systems[title] = measure_curve(title, folder / "one", folder, seconds, deadlines, console)
            except FAILURES as error:
                if title == OURS:
                    raise
                left_out[title] = str(error).strip().partition("\n")[0]
                console.print(f"left out: {title}: {left_out[title]}", markup=False)
        situations = {
            name: measure_situation(name, folder / "all", folder, seconds, console)
            for name in options.situations
        }
    go = re.search(r"go(\S+)", subprocess.check_output(["go", "version"], text=True).partition("version")[2])
    versions = {"go": go[1] if go else ""}
    versions |= peer_versions(each for each in (MOSEC, TRITON) if each in systems)
    result = {
        **describe_run("bench.serving.overload", ("grpcio", "torch"), versions),
        "seconds": seconds,
        "shape": "-".join(map(str, SHAPES[MODEL])),
        "rows": ROWS,
        "loads": list(LOADS),
        "deadlines_ms": list(deadlines),
        "target_queue_ms": Settings.model_fields["target_queue_ms"].default,
        "systems": systems,
        "situations": situations,
        "left_out": left_out,
    }
    write_result(options.output, result)
    console.print(terminal_table(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
