"""The HTTP side of observability: the live page at /, /metrics, /status.json, /healthz, /readyz. One daemon thread,
one thread per request. What it serves comes from three callables."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import MappingProxyType
from typing import ClassVar

from fused_mlp.service.observe.live_page import live_page
from fused_mlp.service.settings.settings import SettingsError, join_address

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pages:
    """render: from an Accept header to (body, content type); not_ready: why the service cannot answer, empty when it
    can; status: what it serves, and how, as JSON."""

    render: Callable[[str], tuple[bytes, str]]
    not_ready: Callable[[], str]
    status: Callable[[], str]


class MetricsServer:
    def __init__(self, host: str, port: int, pages: Pages) -> None:
        handler = type("Handler", (_Handler,), {"pages": pages})
        try:
            self._server = (_Server6 if ":" in host else _Server)((host, port), handler)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {join_address(host, port)} for metrics: {error.strerror}; "
                "set FUSED_MLP_METRICS_PORT or _HOST"
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, name="metrics-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a page that fails; do not log a scraper that disconnects early."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            log.exception("a page of the metrics port failed")


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    pages: ClassVar[Pages]
    protocol_version = "HTTP/1.1"
    timeout = 10  # seconds; a client that never finishes its request must not keep its thread

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if path == "/":
            page = live_page()
            self._send(200, page.body, "text/html; charset=utf-8", page.headers)
        elif path == "/metrics":
            body, content_type = self.pages.render(self.headers.get("Accept", ""))
            self._send(200, body, content_type)
        elif path == "/status.json":
            self._send(200, self.pages.status().encode(), "application/json")
        elif path == "/healthz":
            self._send(200, b"ok\n")
        elif path == "/readyz":
            why = self.pages.not_ready()
            self._send(503 if why else 200, f"not ready: {why}\n".encode() if why else b"ready\n")
        else:
            self._send(404, b"here are /, /metrics, /status.json, /healthz and /readyz\n")

    def _send(
        self,
        status: int,
        body: bytes,
        content_type: str = "text/plain; charset=utf-8",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.send_response(status)
        all_headers = {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}
        for name, value in all_headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Scrapes are not logged."""
