# SPDX-License-Identifier: Apache-2.0
"""How a server leaves a fleet: it says so first, serves on while balancers hear of it, and ends then. Connections of a
certain age are sent elsewhere."""

from __future__ import annotations

import json
import signal

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fused_mlp.protos import orca_pb2
from fused_mlp.protos.stubs import Stub
from tests.support.fronts import both_fronts
from tests.support.peer import PREDICT, Peer, good_request
from tests.support.server import Server


@both_fronts
def test_server_serves_on_after_sigterm_until_the_delay_or_a_second_signal_ends_it(front: str) -> None:
    with Server(front=front, drain_delay_s=600) as server, grpc.insecure_channel(server.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert server.get("/readyz") == (503, "not ready: shutting down\n")
        assert server.get("/healthz")[0] == 200
        channel.unary_unary(PREDICT)(good_request(), timeout=30)
        # A balancer that has not heard of it yet.
        with grpc.insecure_channel(server.target, [("grpc.use_local_subchannel_pool", 1)]) as late:
            late.unary_unary(PREDICT)(good_request(), timeout=30)
            reports = Stub(late, orca_pb2, "OpenRcaService").StreamCoreMetrics(
                orca_pb2.OrcaLoadReportRequest(), timeout=60
            )
            next(reports)
            server.signal(signal.SIGTERM)
            assert list(watch) == []
            for _ in reports:  # one may have been on its way
                pass
        assert server.wait() == 0


def test_delay_ends_by_itself() -> None:
    with Server(drain_delay_s=0.2) as server:
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "still serving for 0.2 s" in server.log()


def test_connection_of_the_python_front_ends_at_its_age() -> None:
    """That of the native front: tests/service/fronts/test_native_limits.py."""
    limits = json.dumps({"max_connection_age_s": 0.3})
    with Server(front="python", limits=limits) as server, Peer(int(server.target.rpartition(":")[2])) as peer:
        peer.wait(lambda: len(peer.goaways) > 0)
        peer.wait_closed()
