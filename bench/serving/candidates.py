# SPDX-License-Identifier: Apache-2.0
"""One user, many candidates, served: CPU time of the server per request with shared inputs against repeated rows; what
top_k costs; and a search among the vectors of a million items against numpy and faiss. `python -m
bench.serving.candidates`; one client, one request at a time, one server thread."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.kernels.candidates import SHAPES, draw, make, work
from bench.provenance import describe_run, write_result
from fused_mlp import Client, Mlp, MlpSpec, save
from fused_mlp.models import LayerSpec
from fused_mlp.models.weights.precision import to_precision
from fused_mlp.service.local.child_server import ChildServer, environment

RESULTS = Path(__file__).parent.parent / "results" / "candidates-served.json"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def ask(client: Client, pid: int, requests: list[dict[str, Any]], budget_s: float) -> dict[str, float]:
    """Per request: CPU time of the server, its kernel's time and what the client waited, in us."""
    for request in requests[:2]:
        client.predict(**request)
    waited, computed, begin = [], [], cpu_s(pid)
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end or len(waited) < 5:
        start = time.perf_counter()
        answer = client.predict(**requests[len(waited) % len(requests)])
        waited.append(time.perf_counter() - start)
        computed.append(answer.timings.compute_us)
    return {
        "cpu_us": 1e6 * (cpu_s(pid) - begin) / len(waited),
        "compute_us": statistics.median(computed),
        "wait_us": 1e6 * statistics.median(waited),
    }


def shared_against_repeated(
    client: Client, pid: int, counts: list[int], budget_s: float
) -> list[dict[str, Any]]:
    cells = []
    for name, shape in SHAPES.items():
        spec, shared = shape()
        once, rest = work(shape())
        for rows in counts:
            asked: dict[str, list[dict[str, Any]]] = {"shared": [], "repeated": []}
            for seed in range(8):
                given = draw(spec, shared, rows, seed)
                common = {each: given[each] for each in given if each in shared}
                own = {each: given[each] for each in given if each not in shared}
                whole = own | {each: np.repeat(values, rows, axis=0) for each, values in common.items()}
                model = name.replace(" ", "-")
                asked["shared"].append({"model": model, "x": own, "shared": common})
                asked["repeated"].append({"model": model, "x": whole})
            found = {form: ask(client, pid, each, budget_s) for form, each in asked.items()}
            ideal = rows * (once + rest) / (once + rows * rest)
            gain = found["repeated"]["cpu_us"] / found["shared"]["cpu_us"]
            kernel = found["repeated"]["compute_us"] / found["shared"]["compute_us"]
            cells.append(
                {
                    "shape": name,
                    "rows": rows,
                    **found,
                    "ideal_gain": ideal,
                    "gain": gain,
                    "kernel_gain": kernel,
                }
            )
            print(
                f"{name}, {rows:,}: {found}; gain {gain:.2f}, of the kernel {kernel:.2f}, ideal {ideal:.2f}",
                flush=True,
            )
    return cells


def top_of_many(client: Client, pid: int, budget_s: float) -> dict[str, Any]:
    spec, shared = SHAPES["late interaction"]()
    given = draw(spec, shared, 100_000, 0)
    request = {
        "model": "late-interaction",
        "x": {each: values for each, values in given.items() if each not in shared},
        "shared": {each: values for each, values in given.items() if each in shared},
    }
    found = {
        str(top): ask(client, pid, [request | ({"top_k": top} if top else {})], budget_s) for top in (0, 10)
    }
    print(f"100,000 candidates, all and the best 10: {found}", flush=True)
    return found


def search(client: Client, pid: int, vectors: np.ndarray, budget_s: float) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    queries = rng.standard_normal((16, vectors.shape[1]), np.float32)
    found: dict[str, Any] = {}
    for model in ("items", "items-int8"):
        requests = [{"model": model, "x": query, "top_k": 10} for query in queries]
        found[model] = ask(client, pid, requests, budget_s)

    def timed(call: Any) -> float:
        samples, end = [], time.perf_counter() + budget_s
        while time.perf_counter() < end or len(samples) < 5:
            start = time.perf_counter()
            call(queries[len(samples) % len(queries)])
            samples.append(time.perf_counter() - start)
        return 1e6 * statistics.median(samples)

    def by_numpy(query: np.ndarray) -> np.ndarray:
        scores = vectors @ query
        best = np.argpartition(-scores, 10)[:10]
        return best[np.argsort(-scores[best])]

    found["numpy"] = {"wait_us": timed(by_numpy)}
    try:
        import faiss
    except ImportError:
        pass
    else:
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        faiss.omp_set_num_threads(1)
        found["faiss flat"] = {"wait_us": timed(lambda query: index.search(query[None], 10))}
    print(f"{len(vectors):,} x {vectors.shape[1]}, the best 10: {found}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.serving.candidates", description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[50, 500, 5000])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--budget-s", type=float, default=2.0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    vectors = np.random.default_rng(0).standard_normal((given.items, 64), np.float32)
    items = Mlp(
        MlpSpec(in_features=64, layers=(LayerSpec(out_features=given.items, bias=False),)),
        {"layers.0.weight": vectors},
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        save(items, root / "items" / "1")
        save(to_precision(items, "int8"), root / "items-int8" / "1")
        for name, shape in SHAPES.items():
            save(make(shape().spec), root / name.replace(" ", "-") / "1")
        settings = {
            "MODEL_REPOSITORY": folder,
            "THREADS": 1,
            "LIMITS": json.dumps({"max_request_rows": 100_000, "max_message_bytes": 1 << 28}),
            "QUEUE_ROWS": 200_000,
        }
        server = ChildServer(environment(settings))
        try:
            with Client(server.target, timeout_s=60) as client:
                client.ready(120)
                pid = server.process.pid
                cells = shared_against_repeated(client, pid, given.counts, given.budget_s)
                top = top_of_many(client, pid, given.budget_s)
                found = search(client, pid, vectors, given.budget_s)
        finally:
            server.stop()
    write_result(
        given.output,
        {**describe_run("bench.serving.candidates"), "cells": cells, "top": top, "search": found},
    )


if __name__ == "__main__":
    main()
