# SPDX-License-Identifier: Apache-2.0
"""REST beside gRPC: `python -m bench.serving.rest` (four minutes). One server with both ports; h2load sends each of
them the same row over and over: gRPC, REST with binary tensors and REST with JSON, the last two over HTTP/1.1 (a
connection for each outstanding request) and HTTP/2. With `--peers`, which installs them: mosec, and FastAPI with
torch."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.load import GENERATOR_THREADS, LOADS, PREDICT, request_for, write_frame
from bench.serving.peers.venvs import PeerUnavailable
from bench.serving.rest_peers import start_peers
from bench.serving.rest_peers import versions as versions_of_peers
from bench.serving.systems import MODELS, make_repository, service

RESULTS = Path(__file__).parent.parent / "results" / "serving-rest.json"


@dataclass(frozen=True)
class Target:
    """The requests of h2load, and their destination."""

    name: str
    url: str
    body: Path
    headers: tuple[str, ...] = ()
    http1: bool = False

    def run(self, outstanding: int, requests: int, log: str = "") -> float:
        """Requests per second."""
        connections, streams = (outstanding, 1) if self.http1 else LOADS[outstanding]
        requests = max(requests, connections * streams * 4)
        command = [
            "h2load", f"--threads={min(GENERATOR_THREADS, connections)}", f"--requests={requests}",
            f"--clients={connections}", f"--max-concurrent-streams={streams}", f"--data={self.body}",
            *(f"--header={header}" for header in self.headers), *(["--h1"] if self.http1 else []),
            *([f"--log-file={log}"] if log else []), self.url,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        rate = re.search(r"finished in \S+, (\S+) req/s", done.stdout)
        assert rate, done.stdout + done.stderr
        assert f"{requests} 2xx" in done.stdout, f"{self.name}: {done.stdout}"
        return float(rate[1])

    def p50_ms(self, requests: int) -> float:
        with tempfile.NamedTemporaryFile("r") as log:
            self.run(1, requests, log.name)
            return float(np.median([int(line.split()[2]) for line in log])) / 1e3


def targets_of(folder: Path, model: str, grpc_port: int, rest_port: int) -> list[Target]:
    x = np.random.default_rng(0).random((1, MODELS[model][0]), np.float32)
    infer = f"http://127.0.0.1:{rest_port}/v2/models/{model}/infer"
    tensor: dict[str, Any] = {"name": "input", "shape": list(x.shape), "datatype": "FP32"}
    numbers = folder / f"{model}.json"
    numbers.write_text(json.dumps({"inputs": [tensor | {"data": [float(str(v)) for v in x.ravel()]}]}))
    head = json.dumps(
        {
            "inputs": [tensor | {"parameters": {"binary_data_size": x.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    binary = folder / f"{model}.bin"
    binary.write_bytes(head + x.tobytes())
    length = (f"inference-header-content-length: {len(head)}",)
    frame = write_frame(folder / f"{model}.grpc", request_for(model, 1).SerializeToString())
    grpc = ("content-type: application/grpc", "te: trailers")
    return [
        Target("gRPC", f"http://127.0.0.1:{grpc_port}{PREDICT}", frame, grpc),
        Target("REST, binary, HTTP/1.1", infer, binary, length, http1=True),
        Target("REST, binary, HTTP/2", infer, binary, length),
        Target("REST, JSON, HTTP/1.1", infer, numbers, http1=True),
        Target("REST, JSON, HTTP/2", infer, numbers),
    ]


def measure(targets: list[Target], rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Medians over rounds in which all have a turn."""
    samples: dict[str, dict[str, list[float]]] = {
        t.name: {"p50_ms": [], "32": [], "128": []} for t in targets
    }
    for _ in range(rounds):
        for target in targets:
            pace = target.run(1, 200)
            samples[target.name]["p50_ms"].append(target.p50_ms(int(pace * seconds / 2)))
            for outstanding in (32, 128):
                pace = target.run(outstanding, 1000)
                samples[target.name][str(outstanding)].append(target.run(outstanding, int(pace * seconds)))
    return {name: {key: median(values) for key, values in each.items()} for name, each in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument(
        "--peers", action="store_true", help="install mosec and FastAPI, and measure them too"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    versions: dict[str, str] = {}
    left_out: dict[str, str] = {}
    if arguments.peers:
        try:
            versions = versions_of_peers()
        except PeerUnavailable as error:
            left_out["mosec and FastAPI"] = str(error)
            print(f"left out: mosec and FastAPI: {error}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = make_repository(folder / "models")
        for model in MODELS:
            with service("rest", repository, False, front="native", rest_port=0) as server:
                assert server.rest_port is not None
                targets = targets_of(folder, model, server.port, server.rest_port)
                with start_peers(repository, model, bool(versions)) as ports:
                    for peer, port in ports.items():
                        url, body = f"http://127.0.0.1:{port}/inference", folder / f"{model}.json"
                        targets.append(
                            Target(peer, url, body, ("content-type: application/json",), http1=True)
                        )
                    results[model] = measure(targets, arguments.rounds, arguments.seconds)
    report = {
        **describe_run("bench.serving.rest", ("grpcio", "torch"), {"h2load": h2load_version(), **versions}),
        "left_out": left_out,
        "results": results,
    }
    write_result(arguments.output, report)
    for model, figures in results.items():
        grpc = figures["gRPC"]
        print(f"{model}: p50 at 1 outstanding; req/s at 32 and 128; all of gRPC's")
        for target, each in figures.items():
            shares = "  ".join(f"{each[key]:10,.0f} {each[key] / grpc[key]:5.2f}x" for key in ("32", "128"))
            print(f"  {target:26} {each['p50_ms']:7.3f} ms {each['p50_ms'] / grpc['p50_ms']:5.2f}x  {shares}")


if __name__ == "__main__":
    main()
