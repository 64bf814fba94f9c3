# SPDX-License-Identifier: Apache-2.0
"""The fused CPU kernel against eager PyTorch, torch.compile, ONNX Runtime and OpenVINO, and against the
limits of the machine. Run as `python -m bench.kernels`; engines take turns, each in a process of its own.
`--precision` compares int8 and bfloat16 weights instead, with the int8 of the others. `--beside 0.4` compares the
medians of two threads beside a process that uses that share of a core, `--burst-ms 100` in long bursts.

A full run takes about ten minutes, most of it torch.compile; `--quick` a minute, without it.
An interrupted run goes on where it stopped with `--resume`."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.kernels.engines import ENGINES, FLOAT_ENGINES, PACKAGES, PRECISION_ENGINES
from bench.kernels.neighbour import neighbour
from bench.kernels.precision_report import precision_summary, precision_table
from bench.kernels.process import Worker
from bench.kernels.report import BESIDE_US, beside_summary, show, summary
from bench.kernels.shapes import (
    ALL,
    BATCHES,
    BESIDE_BATCHES,
    BESIDE_SHAPES,
    PRECISION_SHAPES,
    SHAPES,
    WITHOUT_NORMS,
    multiply_adds,
)
from bench.kernels.worker import set_priority
from bench.provenance import describe_run, write_result
from fused_mlp.kernels.profile.machine import MachineProbe

RESULTS = Path(__file__).parent.parent / "results" / "kernels.json"
PRECISION_RESULTS = RESULTS.with_name("kernels-int8.json")
BESIDE_RESULTS = RESULTS.with_name("kernels-beside.json")
ROUNDS, TURN_S = 4, 0.04  # turns of each engine per cell, and how long one is
BESIDE_TURN_S = 0.1  # at least, and so many times the longest burst: several of them, and of their pauses
BESIDE_TURN_BURSTS = 4
BURST_MS = 12.0
QUICK_BATCHES = (1, 8, 32, 128)
QUICK_ENGINES = ("fused", "eager", "ONNX Runtime")
# Where engines disagree by more than this, one of them computes something else, and the race is void.
# With weights in fewer bits: of the largest output. The engines quantize rows in different ways.
AGREEMENT = 1e-3
REDUCED_AGREEMENT = 0.15
TABLE_WIDTH = 170  # a table cut off at 80 columns says nothing


def measure_shape(
    realtime: bool,
    shape: str,
    workers: list[Worker],
    probe: MachineProbe,
    threads: int,
    batches: tuple[int, ...],
    progress: Any,
    burst_s: float,
    rounds: int,
) -> list[dict[str, Any]]:
    """`burst_s`: of the other process, 0 if there is none. Beside it, points below BESIDE_US are left out."""
    turn_s = max(BESIDE_TURN_S, BESIDE_TURN_BURSTS * burst_s) if burst_s else TURN_S
    for worker in workers:
        progress(f"{worker.engine} loads {shape}", 0)
        worker.ask(do="load", shape=shape)
    # The cost of norms and additions: times the same products without them, in one more process of the fused kernel.
    plain = Worker("fused", threads) if shape in WITHOUT_NORMS and not burst_s else None
    if plain is not None:
        plain.ask(do="load", shape=WITHOUT_NORMS[shape])
    weights = 4 * multiply_adds(shape)
    cells = []
    for batch in batches:
        samples = {w.engine: w.ask(do="bind", batch=batch)["sample"] for w in workers}
        _check_agreement(shape, batch, samples)
        quick = workers[0].ask(do="time", batch=batch, budget_s=0.01, realtime=realtime)
        if burst_s and quick["median"] < BESIDE_US * 1e-6:
            progress("", 1)
            continue
        best = {worker.engine: math.inf for worker in workers}
        medians: dict[str, list[float]] = {worker.engine: [] for worker in workers}
        flops, read_s, plain_s = 0.0, math.inf, math.inf
        int8_ops, int8_read_s = 0.0, math.inf
        int8 = any(worker.engine == "fused int8" for worker in workers)
        if plain is not None:
            plain.ask(do="bind", batch=batch)
        for _ in range(rounds):
            if realtime:
                set_priority(True)
            flops = max(flops, probe.flops(threads, samples=2))
            read_s = min(read_s, probe.read_seconds(weights, threads, samples=3))
            if int8:
                int8_ops = max(int8_ops, probe.flops(threads, samples=2, int8=True))
                int8_read_s = min(int8_read_s, probe.read_seconds(weights // 4, threads, samples=3))
            if realtime:
                set_priority(False)
            for worker in workers:
                progress(f"{threads} thread{'s' * (threads > 1)}, {shape}, batch {batch}: {worker.engine}", 0)
                reply = worker.ask(do="time", batch=batch, budget_s=turn_s, realtime=realtime)
                best[worker.engine] = min(best[worker.engine], reply["best"])
                medians[worker.engine].append(reply["median"])
                time.sleep(0.003)  # a pool that still spins should not slow down the next engine
            if plain is not None:
                reply = plain.ask(do="time", batch=batch, budget_s=turn_s, realtime=realtime)
                plain_s = min(plain_s, reply["best"])
        compute_s = 2.0 * multiply_adds(shape) * batch / flops
        cells.append(
            {
                "threads": threads,
                "shape": shape,
                "batch": batch,
                "best_us": {name: value * 1e6 for name, value in best.items()},
                "median_us": {name: statistics.median(m) * 1e6 for name, m in medians.items()},
                "limit_us": max(compute_s, read_s) * 1e6,
                "limited_by": "compute" if compute_s > read_s else "reading weights",
            }
        )
        if plain is not None:
            cells[-1]["without_norms_us"] = plain_s * 1e6
        if int8:
            cells[-1]["peak_int8_gops"] = int8_ops / 1e9
            compute_s = 2.0 * multiply_adds(shape) * batch / int8_ops
            cells[-1]["int8_limit_us"] = max(compute_s, int8_read_s) * 1e6
            cells[-1]["multiply_adds"] = multiply_adds(shape)
        progress("", 1)
    if plain is not None:
        plain.close()
    return cells


def _check_agreement(shape: str, batch: int, samples: dict[str, list[float]]) -> None:
    expected = samples["fused"]
    for engine, values in samples.items():
        worst = max(abs(a - b) for a, b in zip(values, expected, strict=True))
        reduced = engine in PRECISION_ENGINES and engine != "fused"
        allowed = REDUCED_AGREEMENT * max(map(abs, expected)) if reduced else AGREEMENT
        if not worst < allowed:
            raise SystemExit(f"{engine} and fused differ by {worst:.2g} on {shape}, batch {batch}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few batches, without torch.compile and OpenVINO"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=None)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each engine per point")
    parser.add_argument(
        "--beside",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of a core, used by another process meanwhile",
    )
    parser.add_argument(
        "--burst-ms",
        type=float,
        default=BURST_MS,
        metavar="MS",
        help="its longest burst; the shortest is a 30th",
    )
    parser.add_argument(
        "--precision", action="store_true", help="int8 and bfloat16 weights, ours and others'"
    )
    parser.add_argument("--shapes", nargs="+", choices=list(ALL), default=None, metavar="SHAPE")
    parser.add_argument("--batches", type=int, nargs="+", default=None)
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=None, metavar="ENGINE")
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument(
        "--realtime", action="store_true", help="time at real-time priority (root; busy machines)"
    )
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run has measured")
    parser.add_argument("--report", action="store_true", help="measure nothing, show --output again")
    arguments = parser.parse_args()
    if not 0 <= arguments.beside <= 1:
        parser.error(f"--beside: expected a share of a core from 0 to 1, got {arguments.beside:g}")
    if not 0.1 <= arguments.burst_ms <= 1000:
        parser.error(f"--burst-ms: expected 0.1 to 1000 ms, got {arguments.burst_ms:g}")
    output, shapes, threads = RESULTS, tuple(SHAPES), [1, 2]
    if arguments.precision:
        output, shapes = PRECISION_RESULTS, PRECISION_SHAPES
        arguments.engines = arguments.engines or list(PRECISION_ENGINES)
    elif arguments.beside:
        output, shapes, threads = BESIDE_RESULTS, BESIDE_SHAPES, [2]
        arguments.batches = arguments.batches or list(BESIDE_BATCHES)
    arguments.output = arguments.output or output
    arguments.shapes = arguments.shapes or list(shapes)
    arguments.threads = arguments.threads or threads
    return arguments


def main() -> None:
    arguments = _arguments()
    console = Console(width=max(Console().width, TABLE_WIDTH))
    partial = arguments.output.with_suffix(".tmp")
    if arguments.report:
        result = json.loads(arguments.output.read_text())
    else:
        result = run(arguments, console, partial)
        write_result(arguments.output, result)
        partial.unlink(missing_ok=True)
        console.print(f"written to {arguments.output}")
    if arguments.precision:
        print(precision_table(result))
        for line in precision_summary(result):
            console.print(line, highlight=False, markup=False)
    else:
        show(console, result)
        for line in (beside_summary if result.get("beside") else summary)(result):
            console.print(line, highlight=False, markup=False)


def run(arguments: argparse.Namespace, console: Console, partial: Path) -> dict[str, Any]:
    engines = arguments.engines or (QUICK_ENGINES if arguments.quick else list(FLOAT_ENGINES))
    engines = ["fused", *(name for name in engines if name != "fused")]
    batches = tuple(arguments.batches or (QUICK_BATCHES if arguments.quick else BATCHES))
    result: dict[str, Any] = {
        **describe_run("bench.kernels", PACKAGES),
        "beside": arguments.beside,
        "burst_ms": arguments.burst_ms if arguments.beside else 0,
        "engines": engines,
        "cells": [],
    }
    if arguments.resume and partial.exists():
        result["cells"] = json.loads(partial.read_text())["cells"]
    done = {(cell["threads"], cell["shape"]) for cell in result["cells"]}
    todo = [(t, s) for t in arguments.threads for s in arguments.shapes if (t, s) not in done]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    probe = MachineProbe()
    burst_s = arguments.burst_ms * 1e-3 if arguments.beside else 0.0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar, neighbour(arguments.beside, burst_s):
        task = bar.add_task("starting", total=len(todo) * len(batches))

        def progress(text: str, advance: int) -> None:
            bar.update(task, advance=advance, **({"description": text} if text else {}))

        for threads in arguments.threads:
            shapes = [s for t, s in todo if t == threads]
            if not shapes:
                continue
            workers = [Worker(engine, threads) for engine in engines]
            affinity = os.sched_getaffinity(0)
            if threads == 1:
                os.sched_setaffinity(0, {min(affinity)})  # the probe, on the core the engines use
            for shape in shapes:
                result["cells"] += measure_shape(
                    arguments.realtime,
                    shape,
                    workers,
                    probe,
                    threads,
                    batches,
                    progress,
                    burst_s,
                    arguments.rounds,
                )
                partial.write_text(json.dumps(result))
            os.sched_setaffinity(0, affinity)
            for worker in workers:
                worker.close()
    return result


if __name__ == "__main__":
    main()
