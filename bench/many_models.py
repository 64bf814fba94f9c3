# SPDX-License-Identifier: Apache-2.0
"""The cost of many small models in one server: time to ready, resident memory, threads, /metrics and the latency of
one of them; then /metrics, and /readyz beside it, once all of them have had a request. `python -m bench.many_models`;
the models have 64-128-128-10 features, weights and files of their own."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save

from bench.provenance import describe_run, write_result
from bench.startup import RunningServer, started
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import LayerSpec
from fused_mlp.models.repository.version_directory import JSON_NAME, WEIGHTS_NAME, ModelFile
from fused_mlp.service.client import Client

RESULTS = Path(__file__).parent / "results" / "many-models.json"
WITH_TRAFFIC = 10
REQUESTS = 2000
SCRAPES = 5
PROBE_S = 5.0
PROBE_PAUSE_S = 0.002
SPEC = MlpSpec.of_layers(
    64, [LayerSpec(out_features=n, activation="relu") for n in (128, 128)] + [LayerSpec(out_features=10)]
)
WEIGHT_BYTES = 4 * SPEC.parameters


def name_of(number: int) -> str:
    return f"m{number:05}"


def make_repository(root: Path, count: int) -> None:
    random = np.random.default_rng(1)
    for number in range(count):
        folder = root / name_of(number) / "1"
        folder.mkdir(parents=True)
        spec = SPEC.model_copy(update={"description": f"number {number}"})
        model_file = ModelFile(format="fused-mlp/2", spec=spec)
        (folder / JSON_NAME).write_text(model_file.model_dump_json(exclude_defaults=True))
        tensors = {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in SPEC.shapes()}
        (folder / WEIGHTS_NAME).write_bytes(save(tensors))


def scrape(url: str, gzip: bool) -> tuple[float, int]:
    """Seconds and bytes."""
    headers = {"Accept-Encoding": "gzip"} if gzip else {}
    begun = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as response:
        size = len(response.read())
    return time.perf_counter() - begun, size


def scrape_for(url: str, seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        scrape(url, gzip=False)


def probe(port: int, seconds: float) -> list[float]:
    """How long /readyz takes, shortest first."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    taken = []
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        connection.request("GET", "/readyz")
        connection.getresponse().read()
        taken.append(time.perf_counter() - begun)
        time.sleep(PROBE_PAUSE_S)
    connection.close()
    return sorted(taken)


def cpu_s(pid: int) -> float:
    """CPU time of the process since its start: its time to ready on a core of its own."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def predict_p50_s(client: Client, names: list[str]) -> float:
    row = np.ones((1, SPEC.in_features), np.float32)
    taken = []
    for number in range(REQUESTS):
        begun = time.perf_counter()
        client.predict(names[number % len(names)], row)
        taken.append(time.perf_counter() - begun)
    return median(taken)


def measure_all_active(server: RunningServer, client: Client, count: int) -> dict[str, float]:
    """Each model gets a request; then scrapes, alone and one after the other beside a probe."""
    row = np.ones((1, SPEC.in_features), np.float32)
    for number in range(count):
        client.predict(name_of(number), row)
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    found = {
        "active_scrape_s": median(scrape(url, gzip=False)[0] for _ in range(SCRAPES)),
        "active_metrics_bytes": scrape(url, gzip=False)[1],
        "active_metrics_gzip_bytes": scrape(url, gzip=True)[1],
    }
    with ProcessPoolExecutor(1) as scraper:  # a process of its own: it must not hold up the probe
        scraping = scraper.submit(scrape_for, url, PROBE_S)
        taken = probe(server.metrics_port, PROBE_S)
        scraping.result()
    return {
        **found,
        "readyz_p50_s": median(taken),
        "readyz_p99_s": taken[int(0.99 * len(taken))],
        "readyz_max_s": taken[-1],
    }


def measure(root: Path, count: int, load: str) -> dict[str, float]:
    settings = {"FUSED_MLP_MODEL_REPOSITORY": str(root), "FUSED_MLP_LOAD": load}
    with started([sys.executable, "-m", "fused_mlp.service.cli"], settings) as server:
        found: dict[str, float] = {
            "ready_s": server.ready_s,
            "ready_cpu_s": cpu_s(server.process.pid),
            "resident_mb": server.resident_mb,
        }
        url = f"http://127.0.0.1:{server.metrics_port}/metrics"
        busy = [name_of(number) for number in range(0, count, max(1, count // WITH_TRAFFIC))][:WITH_TRAFFIC]
        with Client(f"127.0.0.1:{server.grpc_port}") as client:
            begun = time.perf_counter()
            client.predict(busy[-1], np.ones((1, SPEC.in_features), np.float32))
            found["first_predict_s"] = time.perf_counter() - begun
            found["predict_p50_s"] = predict_p50_s(client, busy)
        scrape(url, gzip=False)  # the first imports the exporter
        found["scrape_s"] = median(scrape(url, gzip=False)[0] for _ in range(SCRAPES))
        found["metrics_bytes"] = scrape(url, gzip=False)[1]
        found["metrics_gzip_bytes"] = scrape(url, gzip=True)[1]
        if load == "eager":
            with Client(f"127.0.0.1:{server.grpc_port}") as client:
                found |= measure_all_active(server, client, count)
        found["threads"] = len(os.listdir(f"/proc/{server.process.pid}/task"))
        return found


def show(console: Console, results: list[dict[str, Any]]) -> None:
    table = Table()
    columns = (
        "models",
        "load",
        "ready",
        "CPU till then",
        "resident",
        "of the weights",
        "threads",
        "/metrics",
        "gzip",
        "scrape",
        "p50",
    )
    for column in columns:
        table.add_column(column, justify="right")
    base = results[0]["resident_mb"]
    for r in results:
        grown = (r["resident_mb"] - base) * 2**20 / (r["models"] * WEIGHT_BYTES)
        table.add_row(
            f"{r['models']:,}", r["load"], f"{r['ready_s']:.2f} s", f"{r['ready_cpu_s']:.2f} s",
            f"{r['resident_mb']:.0f} MB",
            f"{grown:.2f}x" if r["models"] > 1 else "", f"{r['threads']}",
            f"{r['metrics_bytes'] / 1e3:.0f} kB", f"{r['metrics_gzip_bytes'] / 1e3:.0f} kB",
            f"{1e3 * r['scrape_s']:.0f} ms", f"{1e6 * r['predict_p50_s']:.0f} us",
        )  # fmt: skip
    console.print(table)
    active = Table(title="all models with traffic")
    for column in ("models", "/metrics", "gzip", "scrape", "/readyz beside scrapes: p50", "p99", "longest"):
        active.add_column(column, justify="right")
    for r in results:
        if r["load"] == "eager":
            active.add_row(
                f"{r['models']:,}",
                f"{r['active_metrics_bytes'] / 1e3:,.0f} kB",
                f"{r['active_metrics_gzip_bytes'] / 1e3:,.0f} kB",
                f"{1e3 * r['active_scrape_s']:.0f} ms",
                *(f"{1e3 * r[f'readyz_{which}_s']:.1f} ms" for which in ("p50", "p99", "max")),
            )
    console.print(active)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.many_models", description=__doc__)
    parser.add_argument("counts", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(width=140)
    results: list[dict[str, Any]] = []
    for count in (1, *options.counts):
        with tempfile.TemporaryDirectory() as folder:
            make_repository(Path(folder), count)
            for load in ("eager",) if count == 1 else ("eager", "lazy"):
                results.append({"models": count, "load": load, **measure(Path(folder), count, load)})
                console.print(f"[dim]{count} models, {load}: ready in {results[-1]['ready_s']:.2f} s")
    show(console, results)
    result = {
        **describe_run("bench.many_models", ("numpy", "pydantic", "prometheus-client")),
        "shape": SPEC.summary(),
        "weight_bytes": WEIGHT_BYTES,
        "models_with_traffic": WITH_TRAFFIC,
        "results": [{k: round(v, 6) if isinstance(v, float) else v for k, v in r.items()} for r in results],
    }
    write_result(options.output, result)


if __name__ == "__main__":
    main()
