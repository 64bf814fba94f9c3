# SPDX-License-Identifier: Apache-2.0
"""One user, many candidates: the CPU kernel with inputs computed once for all rows, against the same kernel and ONNX
Runtime on repeated rows. `python -m bench.kernels.candidates`; one thread, ids drawn anew for each call. The ideal
gain is the work of the repeated rows over that of the shared ones: multiply-adds, and the values looked up."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.kernels.engines import PACKAGES
from bench.kernels.onnx_export import onnx_bytes
from bench.kernels.ranker_shapes import mlp_ranker
from bench.kernels.shapes import Steps
from bench.provenance import describe_run, write_result
from fused_mlp import kernels
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.inputs import Field, Input, record_of
from fused_mlp.models.program.spec import INPUT, Concat, Linear
from fused_mlp.models.program.steps import Embedding, Slice
from fused_mlp.service.client.prediction import build_request

RESULTS = Path(__file__).parent.parent / "results" / "candidates.json"
COUNTS = (50, 500, 5000)
ROUNDS, TURN_S, DRAWS = 5, 0.15, 16
TOGETHER = 8  # requests in a batch


class Shape(NamedTuple):
    spec: MlpSpec
    shared: frozenset[str]  # inputs


def _ids(count: int, name: str) -> list[Input]:
    return [
        Input(name=f"{name}{i}", dtype="int64", fields=(Field(kind="id", size=100_000),))
        for i in range(count)
    ]


def late_interaction() -> Shape:
    """12 ids and 200 floats of a user through 512-256-128, 6 ids of a candidate through 64, both into 64-1."""
    made = Steps()
    user, item = _ids(12, "u"), _ids(6, "c")
    inputs = (*user, Input(name="x", shape=(200,)), *item)
    places = {part.input.name: part for part in record_of(inputs)}

    def looked_up(name: str) -> str:
        ids = made.add(Slice, INPUT, start=places[name].start, stop=places[name].stop)
        return made.add(Embedding, ids, size=100_000, features=16)

    x = made.add(Slice, INPUT, start=places["x"].start, stop=places["x"].stop)
    value = made.add(Concat, inputs=(*(looked_up(each.name) for each in user), x))
    for width in (512, 256, 128):
        value = made.linear(value, width, "relu")
    candidate = made.linear(made.add(Concat, inputs=tuple(looked_up(each.name) for each in item)), 64, "relu")
    made.linear(made.linear(made.add(Concat, inputs=(value, candidate)), 64, "relu"), 1)
    spec = MlpSpec(in_features=sum(each.words for each in inputs), inputs=inputs, steps=made.steps)
    return Shape(spec, frozenset(each.name for each in inputs if each.name[0] != "c"))


def criteo() -> Shape:
    """20 of 26 tables and all floats are the user's."""
    spec = mlp_ranker(26, 100_000, 16, 13, (400, 400, 400, 1))
    return Shape(spec, frozenset([*(f"c{i}" for i in range(20)), "x"]))


SHAPES = {"early concat": criteo, "late interaction": late_interaction}


def work(shape: Shape) -> tuple[float, float]:
    """(of what depends on shared inputs alone, of the rest), of a row."""
    spec = shape.spec
    names = {word: part.input.name for part in spec.record for word in range(part.start, part.stop)}
    columns: dict[str, list[bool]] = {}  # of each value: whether they depend on shared inputs alone
    once = rest = 0.0
    for step in spec.steps:
        if isinstance(step, Slice) and step.input == INPUT:
            columns[step.name] = [names[word] in shape.shared for word in range(step.start, step.stop)]
            continue
        if isinstance(step, Concat):
            columns[step.name] = [flag for source in step.inputs for flag in columns[source]]
            continue
        read = [flag for source in step.sources for flag in columns[source]]
        width = spec.widths_by_name[step.name]
        columns[step.name] = [all(read)] * width
        if isinstance(step, Linear):
            once += sum(read) * width
            rest += (len(read) - sum(read)) * width
        elif isinstance(step, Embedding):
            once, rest = (once + width, rest) if all(read) else (once, rest + width)
    return once, rest


def make(spec: MlpSpec) -> Mlp:
    rng = np.random.default_rng(1)
    tensors = {}
    for name, size in spec.shapes():
        scale = 0.1 if name in spec.tables else size[-1] ** -0.5
        tensors[name] = (rng.standard_normal(size, np.float32) * np.float32(scale)).astype(np.float32)
    return Mlp(spec, tensors)


def draw(spec: MlpSpec, shared: frozenset[str], rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    given = {}
    for each in spec.inputs:
        count = 1 if each.name in shared else rows
        size = each.fields[0].size
        given[each.name] = (
            rng.standard_normal((count, *each.shape), np.float32)
            if size is None
            else rng.integers(0, size, (count, *each.shape))
        )
    return given


def calls_of(
    kernel: CpuKernel, session: Any, shape: Shape, rows: int
) -> tuple[dict[str, list[Callable[[], Any]]], float]:
    """By engine, with a call for each draw; and the share of the bytes of a request."""
    spec = shape.spec
    flags = np.zeros(spec.in_features, bool)
    for part in spec.record:
        flags[part.start : part.stop] = part.input.name in shape.shared
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))).reshape(-1, 2)
    runs = [(int(first), int(last)) for first, last in edges]
    compiled = kernel._compiled
    engines = ("shared", "shared, together", "repeated", "ONNX Runtime")
    calls: dict[str, list[Callable[[], Any]]] = {engine: [] for engine in engines}
    sizes, batch = (0, 1), []
    all_rows = np.empty((TOGETHER * rows, 1), np.float32)
    for seed in range(DRAWS):
        given = draw(spec, shape.shared, rows, seed)
        whole = {
            name: np.repeat(values, rows // len(values), axis=0) if len(values) != rows else values
            for name, values in given.items()
        }
        x, y = spec.pack(whole), np.empty((rows, 1), np.float32)
        groups = [(np.ascontiguousarray(x[0, flags]), np.ascontiguousarray(x[:, ~flags]))]
        calls["shared"].append(lambda groups=groups, y=y: compiled.run_groups(runs, groups, y))
        batch = [*batch, *groups][-TOGETHER:]
        if len(batch) == TOGETHER:
            calls["shared, together"].append(lambda batch=batch: compiled.run_groups(runs, batch, all_rows))
        calls["repeated"].append(lambda x=x, y=y: compiled.run(x, y))
        if session is not None:
            calls["ONNX Runtime"].append(lambda whole=whole: session.run(None, whole))
        if seed == 0:
            own = {name: values for name, values in given.items() if name not in shape.shared}
            once = {name: values for name, values in given.items() if name in shape.shared}
            request, _ = build_request("m", own, None, None, "", output=None, shared=once)
            plain, _ = build_request("m", whole, None, None, "", output=None)
            sizes = (request.ByteSize(), plain.ByteSize())
            calls["shared"][0]()
            got = y.copy()
            calls["repeated"][0]()
            assert np.array_equal(got.view(np.uint32), y.view(np.uint32))
    return {name: each for name, each in calls.items() if each}, sizes[0] / sizes[1]


def time_calls(calls: list[Callable[[], Any]]) -> float:
    """Median seconds of a call, of the thread: time in which other programs have its core does not count."""
    clock = time.thread_time
    samples, end = list[float](), clock() + TURN_S
    while len(samples) < 3 or clock() < end:
        start = clock()
        calls[len(samples) % len(calls)]()
        samples.append(clock() - start)
    return statistics.median(samples)


def measure(name: str, counts: list[int], rounds: int, onnx: bool) -> list[dict[str, Any]]:
    shape = SHAPES[name]()
    mlp = make(shape.spec)
    kernel = kernels.compile(mlp, device="cpu", backend="cpu", threads=1)
    assert isinstance(kernel, CpuKernel)
    session = None
    if onnx:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(onnx_bytes(mlp), options, providers=["CPUExecutionProvider"])
    once, rest = work(shape)
    cells = []
    for rows in counts:
        calls, bytes_share = calls_of(kernel, session, shape, rows)
        times: dict[str, list[float]] = {engine: [] for engine in calls}
        for _ in range(rounds):  # in turns
            for engine, each in calls.items():
                times[engine].append(time_calls(each))
        best = {engine: min(each) for engine, each in times.items()}
        best["shared, together"] /= TOGETHER
        ideal = rows * (once + rest) / (once + rows * rest)
        gain = best["repeated"] / best["shared"]
        cells.append(
            {
                "shape": name,
                "rows": rows,
                "us": {engine: 1e6 * value for engine, value in best.items()},
                "ideal_gain": ideal,
                "gain": gain,
                "share_of_ideal": gain / ideal,
                "gain_together": best["repeated"] / best["shared, together"],
                "bytes_share": bytes_share,
            }
        )
        shown = ", ".join(f"{engine} {1e6 * value:,.1f} us" for engine, value in best.items())
        together = cells[-1]["gain_together"]
        print(
            f"{name}, {rows:,}: {shown}; gain {gain:.2f}, {TOGETHER} together {together:.2f}, ideal {ideal:.2f}; "
            f"bytes {bytes_share:.1%}",
            flush=True,
        )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels.candidates", description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-onnx", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    cells = [
        cell for name in given.shapes for cell in measure(name, given.counts, given.rounds, not given.no_onnx)
    ]
    write_result(given.output, {**describe_run("bench.kernels.candidates", PACKAGES), "cells": cells})


if __name__ == "__main__":
    main()
