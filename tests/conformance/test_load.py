# SPDX-License-Identifier: Apache-2.0
"""Stock clients of several languages under concurrent load, over gRPC and REST: no call is lost, and no connection."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.conformance.proxies import PROXIES, running
from tests.conformance.relay import Relay
from tests.support.compiled_clients import CLIENTS, client
from tests.support.fronts import both_fronts
from tests.support.peer import PREDICT, good_request
from tests.support.rest import INFER, binary_request, json_request, rest_port
from tests.support.server import Server

DEADLINE_MS = 60_000
ROWS = np.random.default_rng(0).random((120, 64), np.float32)


@pytest.fixture(scope="module")
def server(front: str) -> Iterator[Server]:
    with Server(front=front) as running:
        yield running


def load(name: str, target: str, calls: int, at_once: int) -> dict[str, object]:
    report: dict[str, object] = json.loads(client(name).load.run(target, calls, at_once, DEADLINE_MS))
    assert (report["sent"], report["ok"]) == (calls, calls), report
    return report


@both_fronts
@pytest.mark.parametrize("at_once", [1, 8, 64, 512])
def test_grpc_go_stays_connected(server: Server, at_once: int) -> None:
    report = load("grpc-go", server.target, 5000, at_once)
    assert report["connections"] == 1, report


@pytest.mark.parametrize("at_once", [1, 32])
@pytest.mark.parametrize("name", [name for name in CLIENTS if name != "grpc-go"])
def test_no_call_is_lost(server: Server, name: str, at_once: int) -> None:
    load(name, server.target, 2000, at_once)


def test_missed_deadlines_do_not_end_the_connection(server: Server) -> None:
    """A server that stalls for a moment gets 900 RST_STREAM at once."""
    with Relay(server.target) as relay, grpc.insecure_channel(relay.target) as channel:
        predict = channel.unary_unary(PREDICT)
        predict(good_request(), timeout=20)
        server.pause()
        try:
            calls = [predict.future(good_request(), timeout=0.05) for _ in range(900)]
            codes = {call.code() for call in calls}
        finally:
            server.signal(signal.SIGCONT)
        assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}
        for _ in range(10):
            predict(good_request(), timeout=20)
        assert relay.connections == 1


@pytest.fixture(scope="module")
def rest_server(front: str) -> Iterator[int]:
    with Server(front=front, rest_port=0) as running:
        yield rest_port(running)


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
@pytest.mark.parametrize("protocol", [(), ("--h1",)], ids=["http2", "http1"])
@pytest.mark.parametrize("rows", [1, 120], ids=["small", "large"])
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_no_rest_request_is_lost(
    rest_server: int, tmp_path: Path, protocol: tuple[str, ...], rows: int, binary: bool
) -> None:
    """Large: JSON that is read and written by other threads than the loops."""
    body, headers = (
        binary_request(ROWS[:rows]) if binary else (json.dumps(json_request(ROWS[:rows])).encode(), {})
    )
    (tmp_path / "body").write_bytes(body)
    requests = 2000 if rows == 1 else 200
    done = subprocess.run(
        ["h2load", *protocol, f"--requests={requests}", "--clients=16", "--threads=1",
         f"--max-concurrent-streams={1 if protocol else 4}", f"--data={tmp_path / 'body'}",
         *(f"--header={name.replace('_', '-').lower()}: {value}" for name, value in headers.items()),
         f"http://127.0.0.1:{rest_server}{INFER}"],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert f"{requests} 2xx" in done.stdout, done.stdout + done.stderr


# Behind a proxy the server meets the HTTP/2 of the proxy: each proxy has some clients, each client has one proxy.
@pytest.mark.parametrize(("name", "proxy"), list(zip(CLIENTS, itertools.cycle(PROXIES))))
def test_no_call_is_lost_through_a_proxy(server: Server, name: str, proxy: str) -> None:
    with running(proxy, server.target) as target:
        load(name, target, 2000, 32)
