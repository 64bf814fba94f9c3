# SPDX-License-Identifier: Apache-2.0
"""The metrics port under peers that are slow, many, large or broken."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest

from fused_mlp.service.fronts.ports import bind
from fused_mlp.service.observe import http
from fused_mlp.service.observe.http import MAX_CONNECTIONS, MetricsServer, Pages
from fused_mlp.service.observe.http_request import Query

LARGE = b"x" * (64 << 20)  # more than sockets take


Render = Callable[[str, Query], tuple[list[bytes], str]]


def pages(render: Render = lambda *_: ([b"metrics\n"], "text/plain")) -> Pages:
    return Pages(render=render, not_ready=lambda: "loading models", failure=lambda: "", status=lambda _: "{}")


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    running = MetricsServer(bind("127.0.0.1", 0), pages())
    yield running
    running.stop()


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def get(server: MetricsServer, path: str = "/metrics") -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def read_all(connection: socket.socket) -> bytes:
    """Until the server has closed."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def test_answers_on_a_kept_connection_do_not_wait_for_acknowledgements(server: MetricsServer) -> None:
    """With two writes and Nagle's algorithm, each would take the 40 ms of a delayed acknowledgement."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    taken = []
    for _ in range(40):
        begun = time.perf_counter()
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"
        taken.append(time.perf_counter() - begun)
    connection.close()
    assert sorted(taken)[20] < 0.02


def test_clients_that_never_finish_take_no_threads_and_stop_no_scrape(server: MetricsServer) -> None:
    threads = threading.active_count()
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(4 * MAX_CONNECTIONS)]
        for connection in slow:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        assert get(server) == (200, b"metrics\n")
        assert threading.active_count() <= threads + 1  # the one that computes pages
        # Those that waited longest made room for the others.
        assert all(read_all(connection) == b"" for connection in slow[: 3 * MAX_CONNECTIONS])


def test_a_request_has_one_deadline_however_its_bytes_come(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 0.5)
    with connect(server) as connection:
        connection.settimeout(0.1)
        began = time.monotonic()
        closed = False
        while not closed:
            assert time.monotonic() - began < 10
            try:
                connection.sendall(b"G")
                closed = connection.recv(1) == b""
            except TimeoutError:
                pass  # nothing came, and it is still open
            except ConnectionError:
                closed = True


def test_a_client_that_does_not_read_is_cut_off_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MetricsServer(bind("127.0.0.1", 0), pages(lambda *_: ([LARGE], "text/plain")))
    try:
        with connect(server) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
            assert get(server, "/healthz") == (200, b"ok\n")
            assert len(get(server)[1]) == len(LARGE)
        monkeypatch.setattr(http, "TIMEOUT_S", 0.5)
        with connect(server) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            connection.recv(1)
            threading.Event().wait(1.5)  # reads nothing for longer than it may
            assert len(read_all(connection)) < len(LARGE)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 431),
        (b"x" * 20_000, 431),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\nhello", 400),
        (b"GET / HTTP/1.1\r\nHost: example.org\r\nhost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"DELETE /metrics HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
        (b"GET /secret HTTP/1.0\r\n\r\n", 404),
        (b"GET /readyz?full HTTP/1.0\r\n\r\n", 503),
    ],
    ids=lambda value: str(value)[:40],
)
def test_odd_requests_are_answered_and_closed(
    server: MetricsServer, request_bytes: bytes, status: int
) -> None:
    with connect(server) as connection:
        connection.sendall(request_bytes)
        assert read_all(connection).startswith(b"HTTP/1.1 %d " % status)
    assert get(server) == (200, b"metrics\n")


def test_one_connection_serves_many_requests(server: MetricsServer) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    for method, path, body in (
        ("GET", "/metrics", b"metrics\n"),
        ("HEAD", "/metrics", b""),
        ("GET", "/healthz", b"ok\n"),
    ):
        connection.request(method, path)
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, body)
    connection.close()


def test_a_page_that_fails_is_an_error_and_the_next_is_served(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([([b"fi", b"ne"], "text/plain")])

    def render(accept: str, _: Query) -> tuple[list[bytes], str]:
        if accept == "broken":
            raise ValueError("no such metric")
        return next(answers)

    server = MetricsServer(bind("127.0.0.1", 0), pages(render))
    try:
        with connect(server) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\nAccept: broken\r\n\r\n")
            assert read_all(connection).startswith(b"HTTP/1.1 500 ")
        assert get(server) == (200, b"fine")
        assert "no such metric" in caplog.text
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("*", True),
        ("identity", False),
        ("gzip;q=0, deflate", False),
        ("*;q=0.0", False),
        ("gzip;q=0, *", False),
        ("", False),
    ],
)
def test_large_pages_are_compressed_for_those_who_ask(accepted: str, compressed: bool) -> None:
    text = b"fused_mlp_rows_total 1.0\n" * 1000
    server = MetricsServer(bind("127.0.0.1", 0), pages(lambda *_: ([text], "text/plain")))
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        for path, size in (("/metrics", len(text)), ("/healthz", 3)):
            connection.request("GET", path, headers={"Accept-Encoding": accepted})
            response = connection.getresponse()
            body = response.read()
            if size > 1000 and compressed:
                assert response.headers["Content-Encoding"] == "gzip"
                assert len(body) < len(text) / 10
                assert gzip.decompress(body) == text
            else:
                assert response.headers["Content-Encoding"] is None
                assert len(body) == size
    finally:
        connection.close()
        server.stop()


def test_the_query_is_handed_on(server: MetricsServer) -> None:
    asked = []

    def render(_: str, query: Query) -> tuple[list[bytes], str]:
        asked.append((query.all("name[]"), query.choice("buckets", "fine", "coarse")))
        return [], "text/plain"

    named = MetricsServer(bind("127.0.0.1", 0), pages(render))
    try:
        for path in ("/metrics", "/metrics?name[]=a_total&buckets=fine&x=1&name%5B%5D=b%5Fc"):
            assert get(named, path)[0] == 200
        assert asked == [([], None), (["a_total", "b_c"], "fine")]
        refused = get(named, "/metrics?buckets=many")
        assert refused == (400, b"buckets: expected fine or coarse, got 'many'\n")
    finally:
        named.stop()


def test_it_stops_with_connections_open() -> None:
    server = MetricsServer(bind("127.0.0.1", 0), pages())
    with connect(server) as idle, connect(server) as reading:
        reading.sendall(b"GET / HT")
        assert get(server, "/healthz") == (200, b"ok\n")
        server.stop()
        assert read_all(idle) == read_all(reading) == b""
