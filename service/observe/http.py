# SPDX-License-Identifier: Apache-2.0
"""The HTTP side of observability: the live page at /, /metrics, /status.json, /healthz, /readyz. One thread runs an
asyncio loop for all connections, another computes pages; four callables provide their content."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import TYPE_CHECKING, Any

from fused_mlp.service.observe.http_request import MAX_BYTES, BadRequest, Query, Request, read_request
from fused_mlp.service.observe.live_page import live_page
from fused_mlp.service.settings.settings import SettingsError, join_address

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
# For the TLS handshake and for each request, from the answer before it to its last header; then for taking the answer.
TIMEOUT_S = 10.0
MIN_COMPRESSED = 1 << 10
PIECE_BYTES = 1 << 18
_OPEN = ("/healthz", "/readyz")  # for probes, which have no token
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Pages:
    """render: from an Accept header and a query to (pieces of the body, content type); not_ready: why the service
    cannot answer now, empty when it can; failure: why the process cannot recover; status: what is served, as JSON.
    Invalid queries raise BadRequest."""

    render: Callable[[str, Query], tuple[Sequence[bytes], str]]
    not_ready: Callable[[], str]
    failure: Callable[[], str]
    status: Callable[[Query], str]


@dataclass(frozen=True)
class _Page:
    status: int
    pieces: Sequence[bytes]  # of the body
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return sum(map(len, self.pieces))


class MetricsServer:
    """Takes the bound socket `listener` over. `make_tls`: reads the certificate, or returns None for plaintext;
    `may_read`: by the headers with a caller's credentials and its address; `allows_host`: by the header Host."""

    def __init__(
        self,
        listener: socket.socket,
        pages: Pages,
        make_tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        *,
        may_read: Callable[[Mapping[str, str], str], bool] = lambda _headers, _address: True,
        allows_host: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._pages = pages
        self._make_tls = make_tls
        self._may_read = may_read
        self._allows_host = allows_host
        try:
            self.reload_tls()
        except ValueError as error:
            raise SettingsError(f"TLS: {error}") from None
        self._listener = listener
        self.port: int = listener.getsockname()[1]
        self._listener.listen(128)
        # Accepted sockets take it over: a body must not wait 40 ms for the peer to acknowledge its head.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # By when each connection's present step began, the longest first.
        self._connections: dict[asyncio.Task[None], None] = {}
        self._spare: int | None = None  # a descriptor for a probe when all others are in use
        self._keep_spare()
        self._renderer = ThreadPoolExecutor(1, "metrics-page")
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept_all())
        self._thread = Thread(target=self._run, name="metrics-http", daemon=True)
        self._thread.start()

    def reload_tls(self) -> None:
        """Applies to new connections. On a ValueError (one line) the old credentials stay in use."""
        self._tls = self._make_tls()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()
        self._renderer.shutdown()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(asyncio.wait([self._accepting]))
        finally:
            self._listener.close()
            self._loop.close()
            self._give_up_spare()

    async def _accept_all(self) -> None:
        try:
            while True:
                try:
                    accepted = await self._accept()
                except (BlockingIOError, ConnectionAbortedError):
                    continue  # it has gone
                except OSError as error:  # out of descriptors
                    if not self._give_up_spare() and not await self._end_slowest():
                        log.warning("the metrics port cannot accept a connection: %s", error.strerror)
                        await asyncio.sleep(1)
                    continue
                if len(self._connections) >= MAX_CONNECTIONS:
                    await self._end_slowest()
                self._start(self._serve(accepted))
                await asyncio.sleep(0)  # accepting need not yield to the loop while more connections wait
        finally:
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self) -> socket.socket:
        """Waits for a connection first: without a free descriptor accept() fails even if there is none."""
        came = asyncio.Event()
        self._loop.add_reader(self._listener, came.set)
        try:
            await came.wait()
        finally:
            self._loop.remove_reader(self._listener)
        accepted, _ = self._listener.accept()
        accepted.setblocking(False)
        return accepted

    async def _end_slowest(self) -> bool:
        """Closes the connection idle for longest; False if there is none."""
        if not self._connections:
            return False
        slowest = next(iter(self._connections))
        del self._connections[slowest]
        slowest.cancel()
        await asyncio.wait([slowest])
        await asyncio.sleep(0)  # its socket is closed in the next round of the loop
        return True

    def _keep_spare(self) -> None:
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_up_spare(self) -> bool:
        if self._spare is None:
            return False
        os.close(self._spare)
        self._spare = None
        return True

    def _start(self, connection: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(connection)
        self._connections[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task, None)
        self._loop.call_soon(self._keep_spare)  # once its socket is closed

    def _begin_step(self) -> None:
        """Moves this connection to the end of the line: the connections idle for longest are closed first."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = self._connections.pop(task, None)

    async def _serve(self, accepted: socket.socket) -> None:
        """One connection, request by request."""
        transport: asyncio.Transport | None = None
        tls = self._tls
        try:
            reader = asyncio.StreamReader(limit=MAX_BYTES)
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=tls, ssl_handshake_timeout=TIMEOUT_S if tls else None
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            while await self._answer_one(reader, writer):
                pass
            transport.close()
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass  # the peer left, was too slow, or had to make room
        except Exception:
            log.exception("a page of the metrics port failed")
        finally:
            if transport is None:
                accepted.close()
            else:
                transport.abort()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection may be used again."""
        self._begin_step()
        request: Request | None = None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                request = await read_request(reader)
            if request.host is not None and not self._allows_host(request.host):
                raise BadRequest(
                    403, "host: expected an address, or a name of FUSED_MLP_ALLOWED_HOSTS, got another name"
                )
            page = await self._page(request, _address(writer))
        except BadRequest as error:
            page = _Page(error.status, [f"{error}\n".encode()])
        keep = request is not None and request.keep_alive
        self._begin_step()
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(_head(page, keep))
            if request is None or request.method != "HEAD":
                # In pieces: other connections have their turn in between.
                for piece in page.pieces:
                    for begin in range(0, len(piece), PIECE_BYTES):
                        writer.write(memoryview(piece)[begin : begin + PIECE_BYTES])
                        await writer.drain()
            await writer.drain()
            if not keep:
                writer.close()
                await writer.wait_closed()
        return keep

    async def _page(self, request: Request, address: str) -> _Page:
        if request.method not in ("GET", "HEAD"):
            return _Page(405, [b"expected GET or HEAD\n"], headers={"Allow": "GET, HEAD"})
        if request.path not in _OPEN and not self._may_read(request.credentials, address):
            # Browsers ask for a name and a password: the token is the password, and any name will do.
            challenge = 'Basic realm="fused-mlp: the token as password", Bearer realm="fused-mlp"'
            return _Page(401, [b"expected a token or key\n"], headers={"WWW-Authenticate": challenge})
        if request.path == "/healthz":
            why = self._pages.failure()
            return _Page(503 if why else 200, [f"failed: {why}\n".encode() if why else b"ok\n"])
        if request.path == "/readyz":
            why = self._pages.not_ready()
            return _Page(503 if why else 200, [f"not ready: {why}\n".encode() if why else b"ready\n"])
        try:
            return await self._loop.run_in_executor(self._renderer, self._render, request)
        except BadRequest:
            raise
        except Exception:
            log.exception("a page of the metrics port failed")
            return _Page(500, [b"internal error\n"])

    def _render(self, request: Request) -> _Page:
        page = self._make_page(request)
        if not request.takes_gzip or page.length < MIN_COMPRESSED:
            return page
        headers = {**page.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        # The fastest level makes a tenth of /metrics; the others take longer than the network would.
        gzip = zlib.compressobj(1, wbits=31)
        return replace(page, pieces=[*map(gzip.compress, page.pieces), gzip.flush()], headers=headers)

    def _make_page(self, request: Request) -> _Page:
        pages = self._pages
        if request.path == "/":
            page = live_page()
            return _Page(200, [page.body], "text/html; charset=utf-8", page.headers)
        if request.path == "/metrics":
            return _Page(200, *pages.render(request.accept, request.query))
        if request.path == "/status.json":
            return _Page(200, [pages.status(request.query).encode()], "application/json")
        return _Page(404, [b"here are /, /metrics, /status.json, /healthz and /readyz\n"])


def _address(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return join_address(peer[0], peer[1]) if peer else ""


def _head(page: _Page, keep_alive: bool) -> bytes:
    headers = {
        "Content-Type": page.content_type,
        "Content-Length": str(page.length),
        "Connection": "keep-alive" if keep_alive else "close",
        **page.headers,
    }
    lines = [f"HTTP/1.1 {page.status} {_PHRASES[page.status]}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
