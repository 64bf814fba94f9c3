# SPDX-License-Identifier: Apache-2.0
"""The cost of a proxy: `python -m bench.serving.proxy` (two minutes; `--quick`: half a minute). Requests a second, CPU
per request of each tier: a server called directly, one to three behind Envoy (deploy/envoy, one worker), the same with
TLS, and balancing in the client. The rates and the servers' CPU are by h2load, the clients' CPU by stock grpc-go. On a
machine with few cores the tiers share them: the rate is that of all together, CPU per request is what to plan by."""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.docs.figures.scaling import proxy_table
from bench.docs.registry import Results
from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.load import LOADS, Load, request_for, write_frame
from bench.serving.systems import MODELS, make_repository
from bench.summary import medians_by_load
from deploy.cluster.envoy import Envoy, configure, make_certificate
from deploy.cluster.packages import ENVOY_PACKAGES, install_envoy
from deploy.cluster.replica import Place, Replica
from fused_mlp.service.ray.endpoints import write_eds
from tests.support.compiled_clients import client

RESULTS = Path(__file__).parent.parent / "results" / "proxy.json"
REPLICAS = 3
OUTSTANDING = 128


@dataclass(frozen=True)
class Target:
    name: str
    port: int


@dataclass(frozen=True)
class Setup:
    """`replicas` are called directly, each over its own connections, or through Envoy."""

    replicas: int
    proxied: bool
    tls: bool = False


SETUPS = {
    "one server, directly": Setup(1, proxied=False),
    "balanced in the client, 2 servers": Setup(2, proxied=False),
    "Envoy, 1 server": Setup(1, proxied=True),
    "Envoy, 2 servers": Setup(2, proxied=True),
    "Envoy, 3 servers": Setup(3, proxied=True),
    "Envoy with TLS, 2 servers": Setup(2, proxied=True, tls=True),
}


class Bench:
    def __init__(self, replicas: list[Replica], envoy: Envoy, frames: dict[str, Path]) -> None:
        self._replicas, self._envoy, self._frames = replicas, envoy, frames

    def measure(self, name: str, model: str, seconds: float) -> dict[str, float]:
        setup = SETUPS[name]
        used = self._replicas[: setup.replicas]
        if setup.proxied:
            self._envoy.set_replicas([each.target for each in used])
            listener = "grpc-tls" if setup.tls else "grpc"
            targets = [self._envoy.targets[listener]]
        else:
            targets = [each.target for each in used]
        pace = self._load(targets, model, setup.tls, 4_000)[1]
        before = [cpu_seconds(each.pid) for each in (self._envoy, *used)]
        requests, rate = self._load(targets, model, setup.tls, int(pace * seconds))
        spent = [cpu_seconds(each.pid) - was for each, was in zip((self._envoy, *used), before, strict=True)]
        found = {"rate": rate, "server_us": sum(spent[1:]) / requests * 1e6}
        return found | ({"envoy_us": spent[0] / requests * 1e6} if setup.proxied else {})

    def _load(self, targets: Sequence[str], model: str, tls: bool, requests: int) -> tuple[int, float]:
        """About so many, shared by the targets at once; how many, and how many a second."""
        connections, streams = LOADS[OUTSTANDING]
        load = Load(
            self._frames[model], connections // len(targets), streams, scheme="https" if tls else "http"
        )
        ports = [Target(each, int(each.rpartition(":")[2])) for each in targets]
        begin = time.perf_counter()
        with ThreadPoolExecutor(len(ports)) as pool:
            sent = sum(n for n, _ in pool.map(lambda port: load.run(port, requests // len(ports)), ports))
        return sent, sent / (time.perf_counter() - begin)

    def measure_client(self, name: str, calls: int) -> float:
        """CPU of grpc-go per call of the digits model, in microseconds; 32 calls outstanding."""
        setup = SETUPS[name]
        used = [each.target for each in self._replicas[: setup.replicas]]
        if setup.proxied:
            self._envoy.set_replicas(used)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = json.loads(
            client("grpc-go").load.run(
                self._envoy.target if setup.proxied else ",".join(used), calls, 32, 60_000
            )
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if report["ok"] != calls:
            raise SystemExit(f"{name}: grpc-go expected {calls} answers, got {report}")
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return spent / calls * 1e6


def cpu_seconds(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run of h2load")
    parser.add_argument("--quick", action="store_true", help="one round of half a second")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.5
    console = Console(stderr=True)
    binary = install_envoy()
    client("grpc-go")  # built now, and not while its CPU is measured
    models: dict[str, Any] = {model: {name: [] for name in SETUPS} for model in MODELS}
    clients: dict[str, list[float]] = {name: [] for name, setup in SETUPS.items() if not setup.tls}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        repository = make_repository(folder / "models")
        frames = {
            model: write_frame(folder / f"{model}.frame", request_for(model, 1).SerializeToString())
            for model in MODELS
        }
        replicas = []
        for _ in range(REPLICAS):
            replicas.append(Replica(Place(), {"model_repository": repository, "front": "native"}))
            stack.callback(replicas[-1].stop)
        make_certificate(folder)
        configure(folder, any_ports=True)
        write_eds(folder, [])
        bench = Bench(replicas, stack.enter_context(Envoy(binary, folder)), frames)
        for turn in range(options.rounds):
            for setup in SETUPS:
                for model in MODELS:
                    models[model][setup].append(bench.measure(setup, model, options.seconds))
                if setup in clients:
                    clients[setup].append(bench.measure_client(setup, int(15_000 * options.seconds)))
            console.print(f"[dim]round {turn + 1}")
    result = {
        **describe_run(
            "bench.serving.proxy",
            ("grpcio",),
            {"envoy": ENVOY_PACKAGES[0].rpartition("==")[2], "h2load": h2load_version()},
        ),
        "shapes": {model: "-".join(map(str, widths)) for model, widths in MODELS.items()},
        "outstanding": OUTSTANDING,
        "models": medians_by_load(models),
        "grpc_go_us": {setup: median(spent) for setup, spent in clients.items()},
    }
    write_result(options.output, result)
    print(proxy_table(Results(fresh={"proxy": result})))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
