# SPDX-License-Identifier: Apache-2.0
"""A server with few file descriptors: idle connections take neither the probes' nor the newcomers' place."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import ExitStack
from itertools import count

import grpc
import pytest

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.descriptors import RESERVED
from tests.support.server import COMMAND, Server

LIMIT = 320


def limited(soft: int, hard: int) -> list[str]:
    return ["prlimit", f"--nofile={soft}:{hard}", *COMMAND]


def test_idle_connections_starve_neither_probes_nor_newcomers() -> None:
    with Server(command=limited(LIMIT, LIMIT)) as server, ExitStack() as held:
        host, _, port = server.target.rpartition(":")
        for _ in range(2 * LIMIT):  # without a preface: each counts as idle from the start
            held.enter_context(socket.create_connection((host, int(port)), timeout=10))
            fds = os.listdir(f"/proc/{server.process.pid}/fd")
            assert len(fds) < LIMIT - RESERVED // 2, "connections that make room keep too many descriptors"
        assert server.get("/healthz")[0] == 200
        assert server.get("/readyz")[0] == 200
        for _ in range(30):
            with grpc.insecure_channel(server.target) as channel:
                assert Stub(channel, pb, "Inference").ListModels(pb.ListModelsRequest(), timeout=20).models
        assert f"max_connections: {LIMIT - RESERVED} instead of 1024" in server.log()
        assert server.metric("process_open_fds") < LIMIT
        assert "Too many open files" not in server.log()


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    hard = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    if hard < 2048:
        pytest.skip("needs a hard limit of 2048 file descriptors")
    with Server(command=limited(256, hard)) as server:
        assert server.metric("process_max_fds") == hard
        assert "max_connections" not in server.log()


def test_probes_are_answered_when_descriptors_run_out() -> None:
    with Server() as server:
        assert server.get("/readyz")[0] == 200
        used = {int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")}
        none_free = next(number for number in count() if number not in used)
        hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (none_free, hard))
        host, _, port = server.metrics_url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10):  # idle: it makes room for the next
            for path in ("/healthz", "/readyz", "/healthz", "/readyz"):
                assert server.get(path)[0] == 200
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert "the metrics port cannot accept" not in server.log()


def test_an_idle_connection_makes_room_when_descriptors_run_out() -> None:
    """Of whatever else has taken them: max_connections alone does not keep it from happening."""
    with Server() as server, ExitStack() as held:
        host, _, port = server.target.rpartition(":")
        for _ in range(50):
            held.enter_context(socket.create_connection((host, int(port)), timeout=10))
        assert server.metric("fused_mlp_front_open_connections") == 50
        hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[1]
        used = sorted(int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd"))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used[-25], hard))
        for _ in range(10):
            options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
            channel = held.enter_context(grpc.insecure_channel(server.target, options=options))
            assert Stub(channel, pb, "Inference").ListModels(pb.ListModelsRequest(), timeout=20).models
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert server.metric("fused_mlp_front_connection_ends_total", reason="refused") == 0
        assert server.metric("fused_mlp_front_connection_ends_total", reason="crowded_out") >= 1
