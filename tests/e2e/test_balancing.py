"""Two real servers behind one client: grpcio's own weighted round robin learns of their load out of band."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import numpy as np

from fused_mlp.protos import orca_pb2
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import Client
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
        rows = np.zeros((4096, 64), np.float32)
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
                before = small_requests(other)
                for _ in range(300):
                    predict(good_request(), wait_for_ready=True)
                share = 1 - (small_requests(other) - before) / 300
    assert one.process.returncode == other.process.returncode == 0


def small_requests(server: Server) -> float:
    return server.metric("fused_mlp_requests_total", code="OK")


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
