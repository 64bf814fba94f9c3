# SPDX-License-Identifier: Apache-2.0
"""Rankers: the fused CPU kernel against eager PyTorch, torch.compile and ONNX Runtime, and against the time in which
the machine reads as many cache lines of tables in random order. Run as `python -m bench.kernels.rankers`; engines take
turns, each in a process of its own, on one thread, with ids drawn anew for each call. "fused" gets packed rows, as the
server makes them; "fused, by name" gets a dict of arrays, as ONNX Runtime does."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from bench.kernels.engines import PACKAGES, last_row
from bench.kernels.process import Worker
from bench.kernels.ranker_shapes import RANKERS, ROWS, build, draw_inputs, lines_per_row
from bench.provenance import describe_run, write_result
from fused_mlp.models import Mlp

RESULTS = Path(__file__).parent.parent / "results" / "rankers.json"
ENGINES = ("fused", "fused, by name", "eager", "torch.compile", "ONNX Runtime")
BATCHES = (1, 8, 64)
ALONE = ("lookups",)  # of shapes with gigabytes of tables: only the kernel, and the limit
ROUNDS, TURN_S = 4, 0.05
AGREEMENT = 1e-3

Inputs = dict[str, np.ndarray]
Calls = Callable[[Inputs], Callable[[], Any]]  # the inputs of one batch -> a call without arguments


def _make(engine: str, mlp: Mlp) -> Calls:
    if engine.startswith("fused"):
        from fused_mlp import kernels

        kernel = kernels.compile(mlp, device="cpu", backend="cpu", threads=1)
        if engine == "fused":

            def packed(given: Inputs) -> Callable[[], Any]:
                rows = mlp.spec.pack(given)
                return lambda: kernel(rows)

            return packed
        return lambda given: lambda: kernel(given)
    if engine == "ONNX Runtime":
        import onnxruntime

        from bench.kernels.onnx_export import onnx_bytes

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(onnx_bytes(mlp), options, providers=["CPUExecutionProvider"])
        return lambda given: lambda: session.run(None, given)
    import torch

    torch.set_num_threads(1)
    module: Any = _frozen(mlp) if engine == "eager" else None
    if module is None:
        torch._inductor.config.freezing = True
        module = torch.compile(_frozen(mlp), dynamic=True)

    def bind(given: Inputs) -> Callable[[], Any]:
        tensors = [torch.from_numpy(given[each.name]) for each in mlp.spec.inputs or ()]

        def call() -> Any:
            with torch.no_grad():
                return module(*tensors)

        return call

    return bind


def _frozen(mlp: Mlp) -> Any:
    return mlp.to_torch().requires_grad_(False)


def serve(engine: str) -> None:
    """Commands as JSON lines on stdin, answers on stdout."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bound: Calls | None = None
    inputs: Inputs = {}
    calls: dict[int, Iterator[Callable[[], Any]]] = {}
    probe: np.ndarray = np.zeros((1, 16), np.float32)
    for line in sys.stdin:
        command = json.loads(line)
        reply: dict[str, Any] = {}
        if command["do"] == "load":
            calls.clear()
            mlp = build(command["shape"])
            bound, inputs = _make(engine, mlp), draw_inputs(command["shape"])
            size = sum(mlp.tensors()[name].size for name in mlp.spec.tables)
            probe = np.ones(
                (size // 16 if engine == "fused" else 1, 16), np.float32
            )  # as large as all tables
            del mlp
        elif command["do"] == "bind":
            assert bound is not None
            rows = command["batch"]
            parts = [
                {name: values[at : at + rows] for name, values in inputs.items()}
                for at in range(0, ROWS, rows)
            ]
            ready = [bound(part) for part in parts[: command["calls"]]]
            calls[rows] = cycle(ready)
            ready[0]()
            reply["sample"] = last_row(ready[1]())
        elif command["do"] == "probe":
            from fused_mlp.kernels import _cpu

            reply["line_s"] = _cpu.probe_random_line_seconds(probe, 5)
        else:
            reply = _time(calls[command["batch"]], command["budget_s"])
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _time(calls: Iterator[Callable[[], Any]], budget_s: float) -> dict[str, float]:
    """Seconds per call, best and median over samples of at least 50 us."""
    clock = time.perf_counter
    start = clock()
    next(calls)()
    inner = max(1, int(50e-6 / max(clock() - start, 1e-7)))
    samples = []
    end = clock() + budget_s
    while True:
        start = clock()
        for _ in range(inner):
            next(calls)()
        stop = clock()
        samples.append((stop - start) / inner)
        if stop >= end:
            return {"best": min(samples), "median": statistics.median(samples)}


def measure(shape: str, engines: list[str], batches: list[int], rounds: int) -> list[dict[str, Any]]:
    if shape.startswith(ALONE):
        engines = engines[:1]
    workers = [Worker(engine, 1, "bench.kernels.rankers") for engine in engines]
    for worker in workers:
        worker.ask(do="load", shape=shape)
    cells = []
    for batch in batches:
        # Views of 27 arrays take memory: enough calls that their table rows do not stay in a cache.
        count = min(ROWS // batch, 4096)
        samples = {w.engine: w.ask(do="bind", batch=batch, calls=count)["sample"] for w in workers}
        expected = samples[engines[0]]
        for engine, sample in samples.items():
            if not max(abs(a - b) for a, b in zip(sample, expected, strict=True)) < AGREEMENT:
                raise SystemExit(f"{engine} and {engines[0]} differ on {shape}, batch {batch}")
        best, medians = dict.fromkeys(engines, math.inf), {engine: list[float]() for engine in engines}
        line_s = math.inf
        for _ in range(rounds):
            for worker in workers:
                reply = worker.ask(do="time", batch=batch, budget_s=TURN_S)
                best[worker.engine] = min(best[worker.engine], reply["best"])
                medians[worker.engine].append(reply["median"])
            line_s = min(line_s, workers[0].ask(do="probe")["line_s"])
        cell = {
            "shape": shape,
            "batch": batch,
            "best_us": {name: value * 1e6 for name, value in best.items()},
            "median_us": {name: statistics.median(found) * 1e6 for name, found in medians.items()},
            "line_ns": line_s * 1e9,
            "lines_us": line_s * lines_per_row(shape) * batch * 1e6,
        }
        cells.append(cell)
        _show(cell)
    for worker in workers:
        worker.close()
    return cells


def _show(cell: dict[str, Any]) -> None:
    ours = cell["median_us"]["fused"]
    others = {name: us for name, us in cell["median_us"].items() if not name.startswith("fused")}
    engines = "  ".join(f"{name} {us:.1f}" for name, us in cell["median_us"].items())
    ratio = f"{min(others.values()) / ours:.2f}x" if others else "-"
    print(
        f"{cell['shape']:34} batch {cell['batch']:4}: {engines} us (median); {ratio} the best other; "
        f"random lines alone {cell['lines_us']:.1f} us",
        flush=True,
    )


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] in ENGINES:  # as `Worker` starts it
        serve(sys.argv[1])
        return
    parser = argparse.ArgumentParser(prog="python -m bench.kernels.rankers", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=list(RANKERS), default=list(RANKERS), metavar="SHAPE")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    result: dict[str, Any] = {**describe_run("bench.kernels.rankers", PACKAGES), "cells": []}
    for shape in arguments.shapes:
        result["cells"] += measure(shape, arguments.engines, arguments.batches, arguments.rounds)
    write_result(arguments.output, result)


if __name__ == "__main__":
    main()
