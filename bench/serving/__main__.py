# SPDX-License-Identifier: Apache-2.0
"""Requests per second and latency end to end: our fronts and variants, two echoes as ceilings, and a plain server on
grpc.aio and torch as baseline. `python -m bench.serving`; every system is up at once and they take turns, so that a
slow minute of the machine hits all alike. `--peers` adds mosec and Triton, which it installs. A full run takes about
six minutes, `--quick` one and a half; `--only ab` measures what A/B costs, `--only precision` what int8 and bfloat16
bring, each into a file of its own."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from bench.docs.figures.precision import int8_serving
from bench.docs.figures.serving import FUSED, serving_goals, serving_table
from bench.docs.registry import Results
from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.ab import cost_table, measure_ab
from bench.serving.load import LOADS, PROTOCOLS, Load, measure, request_for, verify, write_frame
from bench.serving.precision import measure_precision
from bench.serving.systems import (
    MODELS,
    PEERS,
    ROOT,
    System,
    make_repository,
    peer_versions,
    scheduling,
    service,
    start_all,
    start_peers,
)
from bench.summary import medians_by_load

RESULTS = Path(__file__).parent.parent / "results" / "serving.json"
AB_RESULTS = RESULTS.with_name("serving-ab.json")
PRECISION_RESULTS = RESULTS.with_name("serving-precision.json")
MANY_ROWS = 64


@contextmanager
def started(systems: list[System]) -> Iterator[list[System]]:
    with ExitStack() as stack:
        for system in systems:
            stack.enter_context(system)
        yield systems


def measure_model(
    repository: Path,
    model: str,
    options: argparse.Namespace,
    folder: Path,
    console: Console,
    left_out: dict[str, str],
) -> dict[str, Any]:
    bodies = {name: folder / f"{model}.{name}" for name in PROTOCOLS}
    for name, path in bodies.items():
        path.write_bytes(PROTOCOLS[name].body(model, 1))
    samples: dict[str, dict[str, list[dict[str, Any]]]] = {}
    everything = start_all(repository, model, options.priority)
    if options.peers:
        peers, missing = start_peers(repository, model, options.priority, folder)
        everything += peers
        left_out |= missing
        for name, why in missing.items():
            console.print(f"left out: {name}: {why}", highlight=False, markup=False)
    with started(everything) as systems:
        for system in systems:
            verify(system, repository, model, 1)
            samples[system.name] = {str(n): [] for n in LOADS}
        for turn in range(options.rounds):
            for outstanding in LOADS:
                for system in systems:
                    load = Load(
                        bodies[system.protocol],
                        *LOADS[outstanding],
                        options.priority,
                        protocol=system.protocol,
                    )
                    sample = measure(system, load, options.seconds)
                    samples[system.name][str(outstanding)].append(sample.as_dict())
                    console.print(
                        f"[dim]{model}, round {turn + 1}, {outstanding} outstanding: "
                        f"{system.name} {sample.rate:,.0f} req/s"
                    )
    return medians_by_load(samples)


def measure_many_rows(
    repository: Path, options: argparse.Namespace, folder: Path, console: Console
) -> dict[str, dict[str, float]]:
    """64 rows per request against what the kernel alone does on the server's cores. Once with the generator on cores
    of its own, which shows what serving costs; once sharing all cores with it, which counts its work as ours."""
    frame = write_frame(folder / "rows.frame", request_for("mnist", MANY_ROWS).SerializeToString())
    everything = sorted(os.sched_getaffinity(0))
    half = len(everything) // 2
    split = (everything[:half], everything[half:]) if half else (everything, everything)
    found = {}
    for where, (ours, theirs) in {"apart": split, "shared": (everything, everything)}.items():
        found[where] = _many_rows_on(repository, frame, options, ours, theirs)
        served, alone = (found[where][key] for key in ("served_rows_per_s", "kernel_rows_per_s"))
        console.print(f"[dim]{MANY_ROWS} rows, {where}: served {served:,.0f} rows/s, kernel {alone:,.0f}")
    return found


def _many_rows_on(
    repository: Path, frame: Path, options: argparse.Namespace, ours: list[int], theirs: list[int]
) -> dict[str, float]:
    server_cores, generator_cores = (",".join(map(str, cores)) for cores in (ours, theirs))
    load = Load(frame, 8, 2, options.priority, cores=generator_cores)
    system = service(FUSED, repository, options.priority, server_cores, front="native")
    served, alone = [], []
    with system:
        verify(system, repository, "mnist", MANY_ROWS)
        for _ in range(options.rounds):
            alone.append(_kernel_rows_per_s(repository, ours, options.seconds))
            served.append(measure(system, load, options.seconds).rate * MANY_ROWS)
    return {"served_rows_per_s": median(served), "kernel_rows_per_s": median(alone)}


def _kernel_rows_per_s(repository: Path, cores: list[int], seconds: float) -> float:
    """One process per core, each with a kernel of one thread: nothing but the kernel on the machine."""
    alone = ["-m", "bench.serving", "--kernel-alone", str(repository), "--seconds", str(seconds)]
    commands = [[*scheduling(False, str(core)), sys.executable, *alone] for core in cores]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for command in commands
    ]
    return sum(float(process.communicate()[0]) for process in processes)


def kernel_alone(repository: Path, seconds: float) -> None:
    """Prints rows per second. Starts on a full second of the clock, so that the processes run side by side."""
    from fused_mlp import kernels, models

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
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run of h2load")
    parser.add_argument("--quick", action="store_true", help="one round of half a second")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument(
        "--priority", action="store_true", help="run servers and load under SCHED_FIFO (needs root)"
    )
    parser.add_argument("--turns", type=int, default=0, help="of --only ab; default: 20 for each round")
    parser.add_argument("--only", choices=["ab", "precision"], help="this part alone, into a file of its own")
    parser.add_argument(
        "--output", type=Path, help=f"default: {RESULTS.name}, or one of its own for a part alone"
    )
    parser.add_argument("--peers", action="store_true", help="install mosec and Triton, and measure them too")
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
            **describe_run("bench.serving", ("grpcio", "torch"), {"h2load": h2load_version()}),
            "rounds": options.rounds,
        }
        if options.only == "ab":
            result["ab"] = measure_ab(repository, options, Path(folder), console)
            write_result(options.output or AB_RESULTS, result)
            print(cost_table(result["ab"]))
            return 0
        if options.only == "precision":
            result["precision"] = measure_precision(repository, options, Path(folder), console)
            write_result(options.output or PRECISION_RESULTS, result)
            print(int8_serving(Results(fresh={"serving-precision": result})))
            return 0
        left_out: dict[str, str] = {}
        result |= {
            "seconds": options.seconds,
            "loads": list(LOADS),
            "shapes": {model: "-".join(map(str, MODELS[model])) for model in options.models},
            "models": {
                model: measure_model(repository, model, options, Path(folder), console, left_out)
                for model in options.models
            },
        }
        if "mnist" in options.models:
            result["many_rows"] = measure_many_rows(repository, options, Path(folder), console)
        if options.peers:
            result["left_out"] = left_out
            result["versions"] |= peer_versions(name for name in PEERS if name not in left_out)
    write_result(options.output or RESULTS, result)
    for figure in (serving_table, serving_goals):
        print(figure(Results(fresh={"serving": result})), end="\n\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
