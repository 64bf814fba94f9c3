# SPDX-License-Identifier: Apache-2.0
"""Two real servers behind one client: grpcio's own weighted round robin learns of their load out of band."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.spec import LayerSpec
from fused_mlp.protos import orca_pb2
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import AsyncClient, Client
from fused_mlp.service.client.channel import service_config
from tests.support.fronts import both_fronts
from tests.support.peer import PREDICT, good_request
from tests.support.server import Server, demo_copy

WIDTH = 1024
WEIGHTED = {
    "weighted_round_robin": {
        "enableOobLoadReport": True,
        "oobReportingPeriod": "1s",
        "blackoutPeriod": "0s",
        "weightUpdatePeriod": "0.1s",
    }
}


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """Keeps the cores of this server busy, with a few requests for a large model."""
    stop = threading.Event()

    def work() -> None:
        rows = np.zeros((4096, WIDTH), np.float32)
        with Client(server.target, timeout_s=60) as client:
            while not stop.is_set():
                client.predict("large", rows)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def answered(server: Server) -> float:
    return server.metric("fused_mlp_requests_total", code="OK")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """The first has a large model too."""
    root = demo_copy(tmp_path_factory.mktemp("models"))
    spec = MlpSpec.of_layers(WIDTH, [LayerSpec(out_features=WIDTH)] * 3)
    tensors = {name: np.zeros(shape, np.float32) for name, shape in spec.shapes()}
    models.save(Mlp(spec, tensors), root / "large" / "1")
    with Server(model_repository=root) as one, Server() as other:
        yield one, other


def test_weighted_round_robin_spares_the_busy_server(pair: tuple[Server, Server]) -> None:
    one, other = pair
    options = [("grpc.service_config", json.dumps({"loadBalancingConfig": [WEIGHTED]}))]
    target = f"ipv4:{one.target},{other.target}"
    with busy(one), grpc.insecure_channel(target, options) as channel:
        predict = channel.unary_unary(PREDICT)
        until = time.monotonic() + 30
        share = 0.5
        while share > 0.4:
            assert time.monotonic() < until, f"the busy server got {share:.0%} of the calls"
            before = answered(other)
            for _ in range(300):
                predict(good_request(), wait_for_ready=True)
            share = 1 - (answered(other) - before) / 300


@both_fronts
def test_load_is_told_on_the_port_of_requests_and_on_metrics(server: Server) -> None:
    with grpc.insecure_channel(server.target) as channel:
        reports = Stub(channel, orca_pb2, "OpenRcaService").StreamCoreMetrics(
            orca_pb2.OrcaLoadReportRequest(), timeout=60
        )
        predict = channel.unary_unary(PREDICT)
        for report in reports:
            assert report.application_utilization >= report.cpu_utilization > 0
            if report.rps_fractional > 0:
                break
            predict(good_request())
        reports.cancel()
    assert report.named_metrics["rps.digits"] == report.rps_fractional
    assert report.eps == 0
    assert server.metric("fused_mlp_utilization") > 0
    assert server.metric("fused_mlp_queue_fill") == 0


def test_client_takes_servers_in_turn_and_leaves_out_those_that_are_not_well(
    pair: tuple[Server, Server],
) -> None:
    one = pair[0]
    with Server(drain_delay_s=600) as other:
        target = f"ipv4:{one.target},{other.target}"
        with Client(target, balancing="round_robin") as client:

            def calls_of_other(count: int) -> float:
                before = answered(one), answered(other)
                for _ in range(count):
                    client.predict("digits", [0.0] * 64)
                taken = answered(one) - before[0], answered(other) - before[1]
                assert sum(taken) == count
                return taken[1]

            until = time.monotonic() + 30
            while calls_of_other(20) != 10:  # gRPC uses a server once it is connected
                assert time.monotonic() < until, "expected that both servers get half of the calls"
            assert calls_of_other(100) == 50
            other.signal(signal.SIGTERM)  # it would still answer, but says that it leaves
            while calls_of_other(20) != 0:
                assert time.monotonic() < until, "calls still go to the server that leaves"
        other.signal(signal.SIGTERM)
        assert other.wait() == 0


async def test_asyncio_client_balances_by_load_with_the_documented_service_config(
    pair: tuple[Server, Server],
) -> None:
    one, other = pair
    before = answered(one), answered(other)
    target = f"ipv4:{one.target},{other.target}"
    async with AsyncClient(target, balancing="weighted_round_robin") as client:
        until = time.monotonic() + 30
        while answered(one) == before[0] or answered(other) == before[1]:
            assert time.monotonic() < until, "one of the servers got no call"
            await client.predict("digits", [0.0] * 64)
    page = (Path(__file__).parents[2] / "docs" / "scaling" / "balancing.md").read_text()
    (documented,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert service_config("weighted_round_robin").items() <= json.loads(documented).items()
    with grpc.insecure_channel(target, [("grpc.service_config", documented)]) as channel:
        channel.unary_unary(PREDICT)(good_request(), wait_for_ready=True, timeout=30)


def test_unknown_way_of_balancing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one of pick_first, round_robin, .*; got 'random'"):
        Client("127.0.0.1:1", balancing="random")  # type: ignore[arg-type]
