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

from fused_mlp.protos import orca_pb2
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import AsyncClient, Client
from fused_mlp.service.client.channel import service_config
from tests.conformance.peer import PREDICT, good_request
from tests.support.server import Server

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
    """Keeps about a core of this server busy, with a few large requests."""
    stop = threading.Event()

    def work() -> None:
        rows = np.zeros((2048, 64), np.float32)  # of both threads together less than a queue holds
        with Client(server.target) as client:
            while not stop.is_set():
                client.predict("digits", rows)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_weighted_round_robin_spares_the_busy_server(front: str) -> None:
    with Server(front=front) as one, Server(front=front) as other, busy(one):
        options = [("grpc.service_config", json.dumps({"loadBalancingConfig": [WEIGHTED]}))]
        with grpc.insecure_channel(f"ipv4:{one.target},{other.target}", options) as channel:
            predict = channel.unary_unary(PREDICT)
            until = time.monotonic() + 30
            share = 0.5
            while share > 0.4:
                assert time.monotonic() < until, f"the busy server got {share:.0%} of the calls"
                before = answered(other)
                for _ in range(300):
                    predict(good_request(), wait_for_ready=True)
                share = 1 - (answered(other) - before) / 300
    assert one.process.returncode == other.process.returncode == 0


def test_load_is_told_on_the_port_of_requests_and_on_metrics(front: str) -> None:
    with Server(front=front) as server, grpc.insecure_channel(server.target) as channel:
        reports = Stub(channel, orca_pb2, "OpenRcaService").StreamCoreMetrics(
            orca_pb2.OrcaLoadReportRequest(), timeout=60
        )
        predict = channel.unary_unary(PREDICT)
        for report in reports:
            assert report.application_utilization >= report.cpu_utilization > 0
            if report.rps_fractional > 0:
                break
            predict(good_request())
        assert report.named_metrics["rps.digits"] == report.rps_fractional
        assert report.eps == 0
        assert server.metric("fused_mlp_utilization") > 0
        assert server.metric("fused_mlp_queue_fill") == 0
        server.signal(signal.SIGTERM)
        for _ in reports:  # none is wanted, but one may be on its way
            pass
        assert reports.code() is grpc.StatusCode.OK
        assert server.wait() == 0


def answered(server: Server) -> float:
    return server.metric("fused_mlp_requests_total", code="OK")


def test_client_takes_each_server_in_turn_and_leaves_out_those_that_are_not_well() -> None:
    with Server() as one, Server(drain_delay_s=600) as other:
        target = f"ipv4:{one.target},{other.target}"
        with Client(target, balancing="round_robin") as client:
            client.ready()
            until_both(client, one, other)
            before = answered(one), answered(other)
            for _ in range(100):
                client.predict("digits", [0.0] * 64)
            assert (answered(one) - before[0], answered(other) - before[1]) == (50, 50)
            other.signal(signal.SIGTERM)  # it would still answer, but says that it leaves
            until = time.monotonic() + 30
            while True:
                before = answered(one), answered(other)
                for _ in range(20):
                    client.predict("digits", [0.0] * 64)
                if answered(other) == before[1]:
                    break
                assert time.monotonic() < until, "calls still go to the server that leaves"
            assert answered(one) == before[0] + 20
        other.signal(signal.SIGTERM)
        assert other.wait() == 0


def until_both(client: Client, *servers: Server) -> None:
    """gRPC uses a server once it is connected."""
    until = time.monotonic() + 30
    while not all(map(answered, servers)):
        assert time.monotonic() < until, "one of the servers got no call"
        client.predict("digits", [0.0] * 64)


async def test_asyncio_client_balances_by_load_with_the_documented_service_config() -> None:
    with Server() as one, Server() as other:
        target = f"ipv4:{one.target},{other.target}"
        async with AsyncClient(target, balancing="weighted_round_robin") as client:
            until = time.monotonic() + 30
            while not (answered(one) and answered(other)):
                assert time.monotonic() < until, "one of the servers got no call"
                await client.predict("digits", [0.0] * 64)
        page = (Path(__file__).parents[2] / "docs" / "balancing.md").read_text()
        (documented,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
        config = json.loads(documented)
        ours = service_config("weighted_round_robin")
        assert ours.items() <= config.items()
        with grpc.insecure_channel(target, [("grpc.service_config", documented)]) as channel:
            before = answered(one) + answered(other)
            channel.unary_unary(PREDICT)(good_request(), wait_for_ready=True, timeout=30)
            assert answered(one) + answered(other) == before + 1


def test_unknown_way_of_balancing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one of pick_first, round_robin, .*; got 'random'"):
        Client("127.0.0.1:1", balancing="random")  # type: ignore[arg-type]
