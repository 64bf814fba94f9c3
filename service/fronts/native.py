# SPDX-License-Identifier: Apache-2.0
"""The native front as the service sees it: C++ loops answer predictions and health checks and pass every other call to
the handlers through one eventfd. Owns that hand-off; knows nothing of models. Runs on the asyncio loop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fused_mlp.service import _engine, _front
from fused_mlp.service.access.hosts import allowed_hosts
from fused_mlp.service.descriptors import connections_that_fit
from fused_mlp.service.errors import Code, answer
from fused_mlp.service.fronts.ports import port_of
from fused_mlp.service.fronts.rest import Rest
from fused_mlp.service.fronts.rpc import Call, CheckAnswer, Rpc, Want, text_metadata
from fused_mlp.service.settings.settings import Settings, SettingsError

log = logging.getLogger(__name__)

# Taken from all connections in turn, so that one with thousands of events delays another by this many.
_EVENTS_PER_TURN = 16
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_END = object()  # in a call's inbox: the caller has closed its side


class NativeFront:
    name = "native"

    def __init__(
        self,
        settings: Settings,
        rpcs: Sequence[Rpc],
        max_message_bytes: int,
        listener: socket.socket,
        *,
        engine: _engine.Engine | None = None,
        router: _engine.Router | None = None,
        want: Want | None = None,
        rest: socket.socket | None = None,
        callers: _engine.Callers | None = None,
    ) -> None:
        """Takes the bound sockets over. Without an engine and a router, only `rpcs` are served. `callers`: None where
        every caller may predict."""
        self.rest_port = port_of(rest)
        # Health/Check is answered in C++ where there is an engine: see publish_health.
        self._rpcs = {rpc.path: rpc for rpc in rpcs if engine is None or rpc.path != HEALTH_CHECK}
        self._rest = Rest(rpcs)
        self._calls: dict[int, _HandedCall] = {}
        self._want = want
        self._handlers: dict[Any, Callable[[_front.CallEvent], None]] = {
            _front.CallEventKind.start: self._on_start,
            _front.CallEventKind.message: self._on_message,
            _front.CallEventKind.half_close: self._on_half_close,
            _front.CallEventKind.cancel: self._on_cancel,
            _front.CallEventKind.writable: self._on_writable,
            _front.CallEventKind.failure: _log_failure,
            _front.CallEventKind.bad_end: _log_bad_end,
            _front.CallEventKind.shortage: _log_shortage,
            _front.CallEventKind.wanted: self._on_wanted,
        }
        try:
            self._server = _front.FrontServer(
                engine=engine,
                router=router,
                listener=listener.fileno(),
                rest_listener=rest.fileno() if rest else -1,
                loops=settings.event_loops if engine else 1,
                limits=limits_of(settings, max_message_bytes),
                rpcs=[(rpc.path, rpc.kind == "stream_stream") for rpc in self._rpcs.values()],
                certificate=str(settings.tls_certificate or ""),
                key=str(settings.tls_key or ""),
                client_ca=str(settings.tls_client_ca or ""),
                crl=str(settings.tls_crl or ""),
                cors_origins=[each.strip() for each in settings.cors_origins.split(",") if each.strip()],
                callers=callers,
                hosts=allowed_hosts(settings, settings.tls_certificate or callers),
            )
        except RuntimeError as error:
            raise SettingsError(str(error)) from None
        for taken in (listener, rest):
            if taken is not None:
                taken.detach()

    async def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._server.fileno(), self._on_events)
        self._server.start()

    async def listen(self) -> None:
        """Accept connections. Raises SettingsError."""
        try:
            self._server.listen()
        except RuntimeError as error:
            raise SettingsError(str(error)) from None

    async def stop(self, grace_s: float) -> None:
        """Send clients elsewhere, let calls that have begun end within the time, then cancel them."""
        self._server.begin_drain()
        await asyncio.to_thread(self._server.wait_drained, grace_s)
        await asyncio.to_thread(self._server.stop)
        asyncio.get_running_loop().remove_reader(self._server.fileno())
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def reload_tls(self) -> None:
        """Read the TLS files again, for new connections. Raises RuntimeError, and keeps what it had."""
        self._server.reload_tls()

    def publish_health(self, answers: Sequence[CheckAnswer]) -> None:
        self._server.publish_health(answers)

    async def allow_messages(self, max_bytes: int) -> None:
        self._server.allow_messages(max_bytes)

    def retry_waiting(self) -> None:
        self._server.retry_waiting()

    def stats(self) -> _front.FrontStats:
        """Connections, calls and bytes, summed over all loops."""
        return self._server.stats()

    def _on_events(self) -> None:
        for event in self._server.drain(_EVENTS_PER_TURN):
            try:
                self._handlers[event.kind](event)
            except Exception as error:  # the other events of this turn are other callers'
                self._end_broken(event, error)

    def _end_broken(self, event: _front.CallEvent, error: Exception) -> None:
        request_id = secrets.token_hex(8)
        log.error("an event of a call failed, request id %s", request_id, exc_info=error)
        if event.call:
            self._server.finish(event.call, Code.INTERNAL, answer(error, request_id).text)
        if call := self._calls.get(event.call):
            call.task.cancel()

    def _on_start(self, event: _front.CallEvent) -> None:
        # A path of REST has a verb in front, "GET /v2".
        rpc = self._rpcs[event.path] if event.path[0] == "/" else self._rest.rpc(event.path)
        call = _HandedCall(self._server, event, rpc)
        self._calls[event.call] = call
        call.task.add_done_callback(lambda _: self._calls.pop(event.call, None))

    def _on_message(self, event: _front.CallEvent) -> None:
        if call := self._calls.get(event.call):
            call.inbox.put_nowait(event.body)

    def _on_half_close(self, event: _front.CallEvent) -> None:
        if call := self._calls.get(event.call):
            call.inbox.put_nowait(_END)

    def _on_cancel(self, event: _front.CallEvent) -> None:
        if call := self._calls.get(event.call):
            call.task.cancel()

    def _on_wanted(self, event: _front.CallEvent) -> None:
        if self._want is not None:
            self._want(event.path, int(event.body))

    def _on_writable(self, event: _front.CallEvent) -> None:
        if call := self._calls.get(event.call):
            call.writable.set()


class _HandedCall:
    """One call on its way through a handler, as a task."""

    def __init__(self, server: _front.FrontServer, event: _front.CallEvent, rpc: Rpc) -> None:
        self._server = server
        self._number = event.call
        self._rpc = rpc
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()  # bounded by the flow control of the call
        self.writable = asyncio.Event()
        call = Call(
            text_metadata(event.metadata),
            event.certificate_names,
            event.deadline_ns,
            peer_address=event.peer_address,
        )
        self.task = asyncio.create_task(self._run(event.body, call), name=rpc.path)

    async def _run(self, body: bytes, call: Call) -> None:
        try:
            if self._rpc.kind == "unary_unary":
                response = await self._rpc.handle(self._rpc.decode(body), call)
                self._server.send(self._number, self._rpc.encode(response))
            else:
                streams = self._rpc.kind == "stream_stream"
                requests = self._requests() if streams else self._rpc.decode(body)
                async for response in self._rpc.handle(requests, call):
                    await self._send(self._rpc.encode(response))
            self._server.finish(self._number, Code.OK, "", call.trailers)
        except asyncio.CancelledError:
            # By its caller, who is gone and ignores this; or work that the handler awaited was cancelled.
            self._server.finish(self._number, Code.CANCELLED, "cancelled by the server")
            raise
        except Exception as error:
            self._fail(error, call.request_id)

    async def _requests(self) -> AsyncIterator[Any]:
        while (body := await self.inbox.get()) is not _END:
            self._server.message_done(self._number)
            yield self._rpc.decode(body)

    async def _send(self, message: bytes) -> None:
        """Returns when the peer's window and socket have taken it: a slow reader slows its handler down."""
        self.writable.clear()
        self._server.send(self._number, message)
        await self.writable.wait()

    def _fail(self, error: Exception, request_id: str) -> None:
        response = answer(error, request_id)
        if response.code is Code.INTERNAL:
            log.error("%s failed, request id %s", self._rpc.path, request_id, exc_info=error)
        # A lone surrogate cannot be sent, and to raise here would leave the caller without an answer.
        text = response.text.encode(errors="replace").decode()
        self._server.finish(self._number, response.code, text, list(response.trailers))


def limits_of(settings: Settings, max_message_bytes: int) -> _front.Limits:
    limits = _front.Limits()
    for name, value in settings.limits.model_dump(exclude_none=True, exclude={"max_request_rows"}).items():
        setattr(limits, name, value)
    limits.max_message_bytes = max_message_bytes
    limits.max_connections = connections_that_fit(limits.max_connections)
    return limits


def _log_failure(event: _front.CallEvent) -> None:
    text = event.body.decode(errors="replace")
    log.error("request %s failed: %s", event.path, text, extra=dict(event.metadata))


def _log_bad_end(event: _front.CallEvent) -> None:
    log.warning("ended the connection of %s: %s", event.path, event.body.decode(errors="replace"))


def _log_shortage(event: _front.CallEvent) -> None:
    log.warning("refused a call of %s: %s", event.path, event.body.decode(errors="replace"))
