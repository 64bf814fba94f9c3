# SPDX-License-Identifier: Apache-2.0
"""/metrics of a live server, as Prometheus would read it."""

import re
import shutil
import socket
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
import numpy as np
import pytest
from hyperframe.frame import PingFrame

from fused_mlp.service.client import Client, PredictError
from tests.support.certificates import Certificates
from tests.support.fronts import both_fronts
from tests.support.peer import Peer
from tests.support.server import Server

HISTOGRAMS = ("request_duration_seconds", "queue_duration_seconds", "compute_duration_seconds", "batch_rows")
DIGITS_FUSED = {"model": "digits", "version": "1", "variant": "fused"}


def test_promtool_finds_nothing_to_complain_about(
    server: Server, client: Client, example: np.ndarray
) -> None:
    client.predict("digits", example)
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: `apt-get install prometheus` (make test does it)"
    result = subprocess.run(
        [promtool, "check", "metrics"], input=server.get("/metrics")[1], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@both_fronts
def test_each_request_and_row_is_counted_once(server: Server, client: Client, example: np.ndarray) -> None:
    names = ["requests_total", "rows_total", *(f"{name}_count" for name in HISTOGRAMS)]
    before = {name: server.metric(f"fused_mlp_{name}", **DIGITS_FUSED) for name in names}
    for rows in (1, 5):
        client.predict("digits", np.stack([example] * rows), variant="fused")
    grown = {name: server.metric(f"fused_mlp_{name}", **DIGITS_FUSED) - before[name] for name in names}
    assert grown == {name: 6 if name == "rows_total" else 2 for name in names}


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_histogram_has_cumulative_buckets_that_start_small(
    server: Server, client: Client, example: np.ndarray, name: str
) -> None:
    client.predict("digits", example, variant="fused")
    buckets = [
        line
        for line in server.get("/metrics")[1].splitlines()
        if line.startswith(f"fused_mlp_{name}_bucket") and 'variant="fused"' in line
    ]
    counts = [float(line.rsplit(" ", 1)[1]) for line in buckets]
    assert counts == sorted(counts)
    assert counts[-1] == server.metric(f"fused_mlp_{name}_count", variant="fused") > 0
    first = float(re.search('le="([^"]*)"', buckets[0])[1])
    assert first == (1e-6 if name.endswith("seconds") else 1)  # a small fused kernel takes a few us


def test_info_says_what_runs(server: Server, client: Client, example: np.ndarray) -> None:
    assert server.metric("fused_mlp_model_info", model="digits", state="READY") == 1
    client.predict("digits", example)
    assert server.metric("fused_mlp_kernel_info", model="digits", variant="fused", device="cpu") == 1
    assert server.metric("fused_mlp_kernel_info", model="digits", variant="unfused", backend="eager") == 1
    assert server.metric("fused_mlp_build_info") == 1
    assert server.metric("process_cpu_seconds_total") > 0
    assert server.metric("fused_mlp_in_flight") == 0
    assert server.metric("fused_mlp_queue_rows") == 0


@both_fronts
def test_no_request_is_faster_than_its_kernel(server: Server, client: Client, example: np.ndarray) -> None:
    """A worker may answer in the same round of the front's loop in which the request arrived: it still took time."""
    with ThreadPoolExecutor(6) as callers:
        for _ in callers.map(lambda _: client.predict("digits", example, variant="unfused"), range(400)):
            pass
    # Eager layers take tens of microseconds.
    quickest = server.metric("fused_mlp_request_duration_seconds_bucket", variant="unfused", le="5e-06")
    assert quickest == 0


@both_fronts
def test_a_refused_variant_is_counted_under_its_model(front: str, example: np.ndarray) -> None:
    with Server(front=front) as server, Client(server.target) as client:
        with pytest.raises(PredictError, match="does not let requests choose 'unfused'"):
            client.predict("digits", example, variant="unfused")
        (item,) = client.stream("digits", [example], variant="unfused")
        assert item.result.code is grpc.StatusCode.PERMISSION_DENIED
        total = "fused_mlp_requests_total"
        assert server.metric(total, **DIGITS_FUSED, code="PERMISSION_DENIED") == 2
        assert server.metric(total, code="PERMISSION_DENIED") == 2
        client.predict("digits", example)
        assert server.metric(total, **DIGITS_FUSED, code="OK") == 1


FRONT = "fused_mlp_front_"


def test_native_front_counts_connections_streams_and_bytes(example: np.ndarray) -> None:
    with Server(front="native") as server:
        assert server.metric(FRONT + "connections_total") == 0
        with Client(server.target) as client:
            client.predict("digits", example)
            assert server.metric(FRONT + "open_connections") == 1
            assert server.metric(FRONT + "open_calls") == 0
            assert server.metric(FRONT + "connections_total") == 1
            assert server.metric(FRONT + "calls_total") >= 1
            assert server.metric(FRONT + "received_bytes_total") > example.nbytes
            assert server.metric(FRONT + "sent_bytes_total") > 10 * 4  # the outputs
        wait_for_metric(server, FRONT + "connection_ends_total", 1, reason="peer")
        assert server.metric(FRONT + "open_connections") == 0


def test_native_front_counts_what_it_refuses_and_why_connections_end() -> None:
    with Server(front="native") as server:
        with grpc.insecure_channel(server.target) as channel:
            with pytest.raises(grpc.RpcError):
                channel.unary_unary("/no.Such/Method")(b"", timeout=10)
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            next(watch)
            watch.cancel()
            wait_for_metric(server, FRONT + "resets_total", 1, sender="peer")
        assert server.metric(FRONT + "refused_calls_total", code="UNIMPLEMENTED") == 1
        assert server.metric(FRONT + "refused_calls_total") == 1
        host, port = server.target.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert peer.recv(1 << 16) is not None
        wait_for_metric(server, FRONT + "connection_ends_total", 1, reason="handshake")


def test_flood_is_named_in_the_log_and_on_metrics() -> None:
    """One line for a reason in ten seconds, with the first peer; the counter has them all."""
    with Server(front="native", limits='{"max_pings_per_s": 10}') as server:
        port = int(server.target.rsplit(":", 1)[1])
        for _ in range(3):
            with Peer(port) as peer:
                peer.send(*[PingFrame(0, b"flooding")] * 20)
                assert peer.wait_closed() == 11  # ENHANCE_YOUR_CALM
        wait_for_metric(server, FRONT + "connection_ends_total", 3, reason="pings")
        lines = [line for line in server.log().splitlines() if "ended the connection" in line]
        assert len(lines) == 1, lines
        assert "127.0.0.1:" in lines[0]
        assert "max_pings_per_s" in lines[0]


def test_tls_handshakes_and_failures_are_counted(certificates: Certificates) -> None:
    files = certificates.server_files(client_ca=True)
    settings = {"tls_certificate": files.certificate, "tls_key": files.key, "tls_client_ca": files.client_ca}
    with Server(front="native", **settings) as server:
        port = int(server.target.rsplit(":", 1)[1])

        def connect(protocol: str, *, certified: bool) -> None:
            context = ssl.create_default_context(cafile=str(certificates.ca))
            context.set_alpn_protocols([protocol])
            if certified:
                context.load_cert_chain(certificates.client, certificates.client_key)
            with suppress(ssl.SSLError, ConnectionError), Peer(port, tls=context) as peer:
                peer.ping()

        connect("h2", certified=True)
        connect("h2", certified=False)
        connect("http/1.1", certified=True)
        with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            plain.recv(100)
        with socket.create_connection(("127.0.0.1", port)):
            pass
        for reason in ("certificate", "alpn", "not_tls", "closed"):
            wait_for_metric(server, FRONT + "tls_failures_total", 1, reason=reason)
        assert server.metric(FRONT + "tls_failures_total") == 4
        assert server.metric(FRONT + "tls_handshakes_total") == 1
        assert "TLS handshake: certificate" in server.log()


def test_python_front_has_no_such_counts() -> None:
    with Server(front="python") as server:
        assert FRONT not in server.get("/metrics")[1]


def wait_for_metric(server: Server, name: str, value: float, **labels: str) -> None:
    """The front counts an end when it reads it, a moment after the peer has closed."""
    until = time.monotonic() + 30
    while server.metric(name, **labels) != value:
        assert time.monotonic() < until, f"{name} {labels} is {server.metric(name, **labels)}"
        time.sleep(0.01)
