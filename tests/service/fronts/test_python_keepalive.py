# SPDX-License-Identifier: Apache-2.0
"""The Python front tells grpc both keepalive settings: when to ping, and how long to wait for the answer."""

from __future__ import annotations

import json

import pytest
from hyperframe.frame import PingFrame

from tests.support.peer import Peer, framed
from tests.support.server import Server

HEALTH_WATCH = "/grpc.health.v1.Health/Watch"


class MutePeer(Peer):
    """Answers no ping."""

    pinged = False

    def on_ping(self, frame: PingFrame) -> None:
        self.pinged = True


def serve(timeout_s: float) -> Server:
    return Server(front="python", limits=json.dumps({"keepalive_s": 0.5, "keepalive_timeout_s": timeout_s}))


def watching(server: Server) -> MutePeer:
    """grpc pings only connections with an open call."""
    peer = MutePeer(int(server.target.rpartition(":")[2]))
    peer.send(peer.headers(1, HEALTH_WATCH), peer.data(1, framed(b""), end=True))
    peer.wait(lambda: peer.pinged)
    return peer


def test_silence_after_a_ping_ends_the_connection() -> None:
    with serve(timeout_s=0.5) as server, watching(server) as peer:
        peer.wait_closed()
        assert peer.closed


@pytest.mark.parametrize("timeout_s", [60, 0])
def test_silence_within_the_time_limit_does_not(timeout_s: float) -> None:
    with serve(timeout_s) as server, watching(server) as peer:
        peer.set_timeout(3.0)  # six times keepalive_s
        with pytest.raises(TimeoutError):
            peer.wait_closed()
