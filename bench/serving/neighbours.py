# SPDX-License-Identifier: Apache-2.0
"""A small model beside others: `python -m bench.serving.neighbours` (four minutes; `--quick`: one). One server with
digits (64-128-128-10) and wide (1024-4096-1024). A probe sends digits one row at a time, RPS requests a second; beside
it, in turn: nothing, wide with 8 requests of 256 rows outstanding, wide with 4096 rows, digits itself with 4096 rows
from 8 other connections, digits unfused at the same rate. Meanwhile gRPC health and /readyz are asked. Situations take
turns, and each is compared with the probe alone in the same round."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import numpy as np
import torch
from rich.console import Console
from torch import nn

from bench.docs.figures.scaling import neighbours_table
from bench.docs.registry import Results
from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.load import PREDICT, write_frame
from bench.serving.systems import System, make_repository, service
from bench.summary import medians
from fused_mlp import models
from fused_mlp.protos import fused_mlp_pb2 as fm

RESULTS = Path(__file__).parent.parent / "results" / "neighbours.json"
WIDTHS = {"digits": (64, 128, 128, 10), "wide": (1024, 4096, 1024)}
RPS = 500
HEALTH = "/grpc.health.v1.Health/Check"
ALONE, BIG_ALONE = "alone", "wide alone"


@dataclass(frozen=True)
class Load:
    """Requests of h2load: `connections` with one request outstanding each, or at a rate."""

    model: str
    rows: int
    connections: int = 1
    rps: int | None = None
    headers: tuple[str, ...] = ()
    path: str = PREDICT


PROBE = Load("digits", 1, rps=RPS, headers=("x-fused-mlp-variant: fused",))
BIG = Load("wide", 256, 8)
SITUATIONS: dict[str, tuple[Load | None, Load | None]] = {  # the probe, and what runs beside it
    ALONE: (PROBE, None),
    BIG_ALONE: (None, BIG),
    "beside wide, 8 x 256 rows": (PROBE, BIG),
    "beside wide, 8 x 4096 rows": (PROBE, Load("wide", 4096, 8)),
    "beside digits, 8 x 4096 rows": (PROBE, Load("digits", 4096, 8)),
    "beside digits unfused, same rate": (
        PROBE,
        Load("digits", 1, rps=RPS, headers=("x-fused-mlp-variant: unfused",)),
    ),
}


def make_models(root: Path) -> Path:
    repository = make_repository(root)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS["wide"]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    target = repository / "wide" / "1"
    target.mkdir(parents=True)
    models.save(models.from_torch(nn.Sequential(*layers[:-1])), target)
    return repository


class Generator:
    """h2load for a while, at a normal priority, with a log of latencies."""

    def __init__(self, server: System, load: Load, seconds: int, folder: Path) -> None:
        frame = folder / f"{load.model}-{load.rows}.frame"
        if not frame.exists():
            x = np.random.default_rng(0).random((load.rows, WIDTHS[load.model][0]), np.float32)
            message = fm.PredictRequest(
                model=load.model, input=fm.Tensor(shape=x.shape, data=x.tobytes())
            ).SerializeToString()
            write_frame(frame, message if load.path == PREDICT else b"")
        self._load, self._seconds = load, seconds
        self._log = tempfile.NamedTemporaryFile("r", dir=folder)  # noqa: SIM115 - closed in result
        command = [
            "h2load", f"--threads={min(2, load.connections)}", f"--duration={seconds}", "--warm-up-time=300ms",
            f"--clients={load.connections}", "--max-concurrent-streams=1", f"--data={frame}",
            "--header=content-type: application/grpc", "--header=te: trailers",
            *(f"--header={header}" for header in load.headers), *([f"--rps={load.rps}"] if load.rps else []),
            f"--log-file={self._log.name}", f"http://127.0.0.1:{server.port}{load.path}",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def result(self) -> dict[str, float]:
        output, _ = self._process.communicate(timeout=self._seconds + 120)
        with self._log:
            times = np.array([int(line.split()[2]) for line in self._log if line.split()[1] == "200"]) / 1e3
        if not len(times):
            raise SystemExit(f"h2load got no answer:\n{output}")
        found = {name: float(np.percentile(times, q)) for name, q in (("p50_ms", 50), ("p99_ms", 99))}
        rate = len(times) / self._seconds
        return found | {"max_ms": float(times.max()), "rows_per_s": rate * self._load.rows}


class Health:
    """Asks for health over gRPC, each time on a connection of its own, and /readyz, ten times a second each."""

    def __init__(self, server: System) -> None:
        assert server.metrics_url is not None
        self._ready = server.metrics_url.replace("/metrics", "/readyz")
        self._target = f"127.0.0.1:{server.port}"
        self._over = threading.Event()
        self.times: dict[str, list[float]] = {"health_ms": [], "connect_ms": [], "readyz_ms": []}
        self._threads = [threading.Thread(target=each) for each in (self._ask_health, self._ask_ready)]

    def _ask_health(self) -> None:
        with grpc.insecure_channel(self._target) as channel:
            check = channel.unary_unary(HEALTH)
            check(b"")
            while not self._over.wait(0.1):
                self._time("health_ms", lambda: check(b"", timeout=30))
                with grpc.insecure_channel(self._target, [("grpc.use_local_subchannel_pool", 1)]) as fresh:
                    self._time("connect_ms", lambda: fresh.unary_unary(HEALTH)(b"", timeout=30))

    def _ask_ready(self) -> None:
        while not self._over.wait(0.1):
            self._time("readyz_ms", lambda: urllib.request.urlopen(self._ready, timeout=30).read())

    def _time(self, name: str, call: Any) -> None:
        begin = time.perf_counter()
        call()
        self.times[name].append(1e3 * (time.perf_counter() - begin))

    def __enter__(self) -> Health:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def measure(server: System, name: str, seconds: int, folder: Path) -> dict[str, Any]:
    probe, other = SITUATIONS[name]
    with Health(server) as health:
        beside = Generator(server, other, seconds + 1, folder) if other else None
        time.sleep(0.5 if beside else 0)  # until the queue is full
        found: dict[str, Any] = {}
        if probe:
            found["probe"] = Generator(server, probe, seconds, folder).result()
        if beside:
            found["other"] = beside.result()
    # The worst but one: a request in a hundred of the asking process is late by itself.
    found["health"] = {key: sorted(times)[-2:][0] for key, times in health.times.items()}
    return found


@contextmanager
def started(folder: Path, **settings: object) -> Iterator[System]:
    repository = make_models(folder / "models")
    options: dict[str, object] = {"allow_override": 1, "queue_rows": 1 << 16, **settings}
    with service("neighbours", repository, False, front="native", **options) as server:
        yield server


def summarize(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """By situation: medians over the rounds, also of the ratios within each round."""
    found: dict[str, Any] = medians(rounds)

    def ratios(name: str, base: str, part: str, field: str) -> list[float]:
        return [each[name][part][field] / each[base][part][field] for each in rounds]

    for name, (probe, other) in SITUATIONS.items():
        if probe:
            of_alone = ratios(name, ALONE, "probe", "p99_ms")
            found[name]["p99_of_alone"] = median(of_alone)
        if other == BIG:
            found[name]["rows_of_alone"] = median(ratios(name, BIG_ALONE, "other", "rows_per_s"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="of each situation")
    parser.add_argument("--quick", action="store_true", help="one round of two seconds")
    parser.add_argument(
        "--only", nargs="*", choices=list(SITUATIONS), help="these situations, and the two alone"
    )
    parser.add_argument("--threads", type=int, help="FUSED_MLP_THREADS of the server")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 2
    if options.only is not None:
        for name in SITUATIONS.keys() - {ALONE, BIG_ALONE, *options.only}:
            del SITUATIONS[name]
    rounds: list[dict[str, Any]] = []
    console = Console(stderr=True)
    settings = {"threads": options.threads} if options.threads else {}
    with tempfile.TemporaryDirectory() as folder, started(Path(folder), **settings) as server:
        for _ in range(options.rounds):
            rounds.append({n: measure(server, n, options.seconds, Path(folder)) for n in SITUATIONS})
            console.print(f"[dim]round {len(rounds)}")
    result = {
        **describe_run("bench.serving.neighbours", ("grpcio", "torch"), {"h2load": h2load_version()}),
        "models": {name: "-".join(map(str, widths)) for name, widths in WIDTHS.items()},
        "probe_rps": RPS,
        "rounds": options.rounds,
        "situations": summarize(rounds),
    }
    write_result(options.output, result)
    print(neighbours_table(Results(fresh={"neighbours": result})))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
