"""Requests per second and latency end to end: our fronts and variants, two echoes as ceilings, and what an afternoon's
work gets. `python -m bench.serving`; every system is up at once and they take turns, so that a slow minute of the
machine hits all alike. A full run takes about five minutes; `--quick` one."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.serving_load import LOADS, measure, request_for, verify, write_frame
from bench.serving_report import markdown_table, plot, show, targets
from bench.serving_systems import MODELS, ROOT, System, make_repository, service, start_all
from kernels.profile.machine import describe_machine

RESULTS = Path(__file__).parent / "results" / "serving.json"
MANY_ROWS = 64


@contextmanager
def started(systems: list[System]) -> Iterator[list[System]]:
    with ExitStack() as stack:
        for system in systems:
            stack.enter_context(system)
        yield systems


def measure_model(
    repository: Path, model: str, options: argparse.Namespace, folder: Path, console: Console
) -> dict[str, Any]:
    frame = write_frame(folder / f"{model}.frame", request_for(model, 1).SerializeToString())
    samples: dict[str, dict[str, list[dict[str, float]]]] = {}
    with started(start_all(repository, model, options.priority)) as systems:
        for system in systems:
            verify(system, repository, model, 1)
            samples[system.name] = {str(n): [] for n in LOADS}
        for turn in range(options.rounds):
            for outstanding in LOADS:
                for system in systems:
                    sample = measure(system, frame, outstanding, options.seconds, options.priority)
                    samples[system.name][str(outstanding)].append(sample.as_dict())
                    console.print(
                        f"[dim]{model}, round {turn + 1}, {outstanding} outstanding: "
                        f"{system.name} {sample.rate:,.0f} req/s"
                    )
    return samples


def measure_many_rows(
    repository: Path, options: argparse.Namespace, folder: Path, console: Console
) -> dict[str, list[float]]:
    """64 rows per request, against what the kernel alone does with as many threads as there are cores: one caller
    per core, as the front runs it."""
    frame = write_frame(folder / "rows.frame", request_for("mnist", MANY_ROWS).SerializeToString())
    served, alone = [], []
    with started([service("native front, fused", repository, options.priority, transport="native")]) as (
        system,
    ):
        verify(system, repository, "mnist", MANY_ROWS)
        for _ in range(options.rounds):
            alone.append(_kernel_rows_per_s(repository, options.seconds))
            sample = measure(system, frame, 0, options.seconds, options.priority, connections=(8, 2))
            served.append(sample.rate * MANY_ROWS)
            console.print(
                f"[dim]{MANY_ROWS} rows: served {served[-1]:,.0f} rows/s, kernel alone {alone[-1]:,.0f}"
            )
    return {"served_rows_per_s": served, "kernel_rows_per_s": alone}


def _kernel_rows_per_s(repository: Path, seconds: float) -> float:
    """One process per core, each with a kernel of one thread: nothing but the kernel on the machine."""
    cores = describe_machine()["cores"]
    assert isinstance(cores, int)
    command = [
        sys.executable,
        "-m",
        "bench.serving",
        "--kernel-alone",
        str(repository),
        "--seconds",
        str(seconds),
    ]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(cores)]
    return sum(float(process.communicate()[0]) for process in processes)


def kernel_alone(repository: Path, seconds: float) -> None:
    """Prints rows per second. Starts on a full second of the clock, so that the processes run side by side."""
    import kernels
    import models

    kernel = kernels.compile(models.load(repository / "mnist" / "1"), variant="fused", threads=1)
    x = np.random.default_rng(0).random((MANY_ROWS, MODELS["mnist"][0]), np.float32)
    y = np.empty((MANY_ROWS, MODELS["mnist"][-1]), np.float32)
    while time.time() % 1 > 0.001:
        kernel.run(x, y)
    start, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        kernel.run(x, y)
        calls += 1
    print(calls * MANY_ROWS / elapsed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run of h2load")
    parser.add_argument("--quick", action="store_true", help="one round of half a second")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument(
        "--priority", action="store_true", help="run servers and load under SCHED_FIFO (needs root)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--kernel-alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kernel_alone:
        kernel_alone(options.kernel_alone, options.seconds)
        return 0
    if options.quick:
        options.rounds, options.seconds = 1, 0.5
    console = Console(width=180, stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder) / "models")
        result: dict[str, Any] = {
            "machine": describe_machine(),
            "command": " ".join(["python -m bench.serving", *sys.argv[1:]]),
            "commit": _commit(),
            "versions": {name: version(name) for name in ("grpcio", "torch", "fused-mlp")},
            "h2load": _first_line(["h2load", "--version"]),
            "rounds": options.rounds,
            "seconds": options.seconds,
            "loads": list(LOADS),
            "shapes": {model: "-".join(map(str, MODELS[model])) for model in options.models},
            "models": {
                model: measure_model(repository, model, options, Path(folder), console)
                for model in options.models
            },
        }
        if "mnist" in options.models:
            result["many_rows"] = measure_many_rows(repository, options, Path(folder), console)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    show(console, result)
    for model in result["models"]:
        print(
            f"\n{model} ({result['shapes'][model]}), one row per request\n\n{markdown_table(result, model)}"
        )
    print()
    for target in targets(result):
        print(target)
    if options.plot:
        plot(result, options.plot)
    return 0


def _first_line(command: list[str]) -> str:
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return lines[0] if lines else ""


def _commit() -> str:
    commit = _first_line(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])
    dirty = _first_line(["git", "-C", str(ROOT), "status", "--porcelain"])
    return f"{commit}{' (changed)' if dirty else ''}"


if __name__ == "__main__":
    raise SystemExit(main())
