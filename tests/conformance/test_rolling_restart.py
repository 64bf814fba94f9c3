# SPDX-License-Identifier: Apache-2.0
"""A server that gets SIGTERM under load beside one that takes over: stock clients, with nothing set, see no failure.
What the server accepted it answers; what it did not, it refuses in a way that clients retry by themselves."""

from __future__ import annotations

import json
import signal

import pytest

from fused_mlp.service.fronts.selection import native_front_problem
from tests.conformance.relay import Relay
from tests.support.compiled_clients import client, finish
from tests.support.server import Server
from tests.support.waiting import wait_until

CALLS = {
    "grpc-go": 20_000,
    "grpc-c++": 20_000,
    "grpc-java": 5_000,
    "grpc-js": 5_000,
    "grpcio": 3_000,
    "grpcio-aio": 3_000,
}
AT_ONCE = 64


@pytest.mark.skipif(bool(native_front_problem()), reason=native_front_problem())
@pytest.mark.parametrize("name", CALLS)
def test_no_call_fails_when_a_server_is_told_to_stop(name: str) -> None:
    calls = CALLS[name]
    program = client(name).load
    with (
        Server(front="native") as first,
        Server(front="native") as second,
        Relay(first.target) as relay,
    ):
        process = program.start(relay.target, calls, AT_ONCE, 60_000)
        wait_until(lambda: process.poll() is not None or answered(first) >= calls / 10)
        relay.current = second.target
        first.signal(signal.SIGTERM)
        report = json.loads(finish(process))
        assert first.wait() == 0
        assert answered(second) > 0
        assert (report["sent"], report["ok"]) == (calls, calls), report


def answered(server: Server) -> float:
    return server.metric("fused_mlp_requests_total", code="OK")
