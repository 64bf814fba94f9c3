# SPDX-License-Identifier: Apache-2.0
"""A ranker end to end, beside the bare MLP of its width: one server with both, 128 outstanding, in turns. What the
lookups cost is measured in this process, as the difference of the two kernels at the batches that the server made. The
generator sends one request over and over, whose table rows stay in the caches. Run as
`python -m bench.serving.rankers`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from bench.docs.figures.rankers import served_rankers
from bench.docs.registry import Results
from bench.kernels.ranker_shapes import build, draw_inputs
from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.load import LOADS, Load, measure, write_frame
from bench.serving.systems import service
from bench.summary import medians
from fused_mlp import kernels, models
from fused_mlp.models import Mlp
from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.service.client.named_inputs import encode_named

RESULTS = Path(__file__).resolve().parents[1] / "results" / "serving-rankers.json"
SHAPE, WIDTHS, OUTSTANDING = "Criteo-like, 26 x 100,000 x 16", (26 * 16 + 13, 400, 400, 400, 1), 128


def bare() -> Mlp:
    torch.manual_seed(0)
    layers = [part for each in pairwise(WIDTHS) for part in (nn.Linear(*each), nn.ReLU())]
    return models.from_torch(nn.Sequential(*layers[:-1]))


def requests(ranker: Mlp) -> dict[str, bytes]:
    """By model, of one row."""
    row = {name: values[:1] for name, values in draw_inputs(SHAPE).items()}
    x = np.ones((1, WIDTHS[0]), np.float32)
    plain = fm.PredictRequest(model="mlp", input=fm.Tensor(shape=x.shape, data=x.tobytes()))
    named = fm.PredictRequest(model="ranker", inputs=encode_named(row))
    return {"ranker": named.SerializeToString(), "mlp": plain.SerializeToString()}


def seconds_per_row(mlp: Mlp, rows: int) -> float:
    """The time of the kernel alone, on one thread."""
    kernel = kernels.compile(mlp, device="cpu", threads=1)
    x = np.zeros((rows, mlp.spec.in_features), np.float32) if mlp.spec.inputs is None else None
    if x is None:
        x = mlp.spec.pack({name: values[:rows] for name, values in draw_inputs(SHAPE).items()})
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        kernel(x)
        times.append(time.perf_counter() - start)
    return median(times) / rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run of h2load")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(stderr=True)
    made = {"ranker": build(SHAPE), "mlp": bare()}
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in made}
    with tempfile.TemporaryDirectory() as folder:
        for name, mlp in made.items():
            models.save(mlp, Path(folder) / "models" / name / "1")
        frames = {
            name: write_frame(Path(folder) / name, message)
            for name, message in requests(made["ranker"]).items()
        }
        with service("both", Path(folder) / "models", False, front="native") as system:
            for turn in range(options.rounds):
                for name, frame in frames.items():
                    load = Load(frame, *LOADS[OUTSTANDING]).with_answers_of(system)
                    sample = measure(system, load, options.seconds)
                    samples[name].append(sample.as_dict())
                    console.print(
                        f"[dim]round {turn + 1}, {name}: {sample.rate:,.0f} req/s, {sample.cpu_us:.2f} us"
                    )
    found = {name: medians(rounds) for name, rounds in samples.items()}
    rows = max(1, round(found["ranker"]["batch_rows"]))
    lookups_s = seconds_per_row(made["ranker"], rows) - seconds_per_row(made["mlp"], rows)
    result = {
        **describe_run("bench.serving.rankers", ("grpcio",), {"h2load": h2load_version()}),
        "shape": SHAPE,
        "outstanding": OUTSTANDING,
        "cores": len(os.sched_getaffinity(0)),
        "lookups_us": lookups_s * 1e6,
        "models": found,
    }
    write_result(options.output, result)
    print(served_rankers(Results(fresh={"serving-rankers": result})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
