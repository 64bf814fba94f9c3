# SPDX-License-Identifier: Apache-2.0
"""Live traffic beside a load: `python -m bench.serving.reload` (one minute). One server with digits (64-128-128-10),
saturated by h2load over 32 streams; versions of wide (1024-4096-1024) are saved into its repository one after the other
and loaded by FUSED_MLP_RELOAD=poll. Answers while a version is LOADING are compared with those while none is."""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.load import PREDICT, request_for, write_frame
from bench.serving.neighbours import make_models
from bench.serving.systems import service
from fused_mlp import models
from fused_mlp.service.client import Client

RESULTS = Path(__file__).parent.parent / "results" / "reload.json"
CONNECTIONS, STREAMS = 4, 8


def run(seconds: int, folder: Path) -> dict[str, Any]:
    repository = make_models(folder / "models")
    wide = models.load(repository / "wide" / "1")
    (repository / "wide").rename(folder / "wide")
    frame = write_frame(folder / "frame", request_for("digits", 1).SerializeToString())
    log = folder / "latencies"
    with service("reload", repository, False, front="native", reload="poll:0.1") as server:
        command = [
            "h2load", "--threads=1", f"--duration={seconds}", "--warm-up-time=1s", f"--clients={CONNECTIONS}",
            f"--max-concurrent-streams={STREAMS}", f"--data={frame}", "--header=content-type: application/grpc",
            "--header=te: trailers", f"--log-file={log}", f"http://127.0.0.1:{server.port}{PREDICT}",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with Client(f"127.0.0.1:{server.port}") as client:
            loads = follow(client, process, repository, wide)
    return compare(log, loads)


def follow(client: Client, process: Any, repository: Path, wide: models.Mlp) -> list[tuple[float, float]]:
    """Saves a version, waits until it is served, pauses, and so on. Returns when each was loading, in epoch seconds."""
    loads: list[tuple[float, float]] = []
    time.sleep(2)
    number = 0
    while process.poll() is None:
        number += 1
        models.save(wide, repository / "wide" / str(number))
        began = 0.0
        while process.poll() is None:
            named = {model.name: model for model in client.models()}
            found = named["wide"].version(number) if "wide" in named else None
            if found is not None and not began:
                began = time.time()
            if found is not None and found.state == "READY":
                loads.append((began, time.time()))
                break
            time.sleep(0.005)
        time.sleep(1.5)
    return loads


def compare(log: Path, loads: list[tuple[float, float]]) -> dict[str, Any]:
    rows = np.array([line.split() for line in log.read_text().splitlines()], np.int64)
    ends, times = rows[:, 0] / 1e6 + rows[:, 2] / 1e6, rows[:, 2] / 1e3
    during = np.zeros(len(rows), bool)
    for began, ended in loads:
        during |= (ends >= began) & (ends <= ended)

    def told(chosen: Any) -> dict[str, float]:
        quantiles = {f"p{q:g}_ms": float(np.percentile(times[chosen], q)) for q in (50, 99, 99.9)}
        return {**quantiles, "max_ms": float(times[chosen].max()), "requests": int(chosen.sum())}

    return {
        "loads": len(loads),
        "load_s": float(np.median([ended - began for began, ended in loads])),
        "while_loading": told(during),
        "otherwise": told(~during),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(arguments.seconds, Path(folder))
    result["p99_ratio"] = result["while_loading"]["p99_ms"] / result["otherwise"]["p99_ms"]
    report = {
        **describe_run("bench.serving.reload", ("grpcio",), {"h2load": h2load_version()}),
        **result,
    }
    write_result(arguments.output, report)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
