# SPDX-License-Identifier: Apache-2.0
"""The Python front: grpc.aio in front of the handlers. Owns the options of grpc (limits, keepalive, status codes);
knows nothing of models. Runs on the asyncio loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc import aio

from fused_mlp.service.errors import Answer, Code, answer
from fused_mlp.service.fronts.python.credentials import Credentials, certificate_names, peer_address
from fused_mlp.service.fronts.python.predictor import RequestFailed
from fused_mlp.service.fronts.rpc import Call, CheckAnswer, Rpc, text_metadata
from fused_mlp.service.settings.settings import Settings, SettingsError, join_address

log = logging.getLogger(__name__)

_NO_LIMIT_MS = (1 << 31) - 1  # gRPC's own value for "never"
_TAKING_TURN_S = 0.1
_MAX_TAKING_TURNS = 5


class PythonFront:
    name = "python"
    rest_port = 0  # only the native front speaks REST

    def __init__(
        self,
        settings: Settings,
        rpcs: Sequence[Rpc],
        max_message_bytes: int,
        now_ns: Callable[[], int],
        listener: socket.socket,
    ) -> None:
        """Takes the bound socket over. grpc takes no descriptor, so the port is bound a second time."""
        self._now_ns = now_ns
        self._calls_begun = 0
        self._answering = asyncio.Event()  # not set: answers are held
        self._answering.set()
        self._bound = listener
        self._credentials = Credentials(settings) if settings.tls_certificate else None
        self._settings = settings
        self._handlers = _Handlers({rpc.path: self._wrap(rpc) for rpc in rpcs})
        self._max_message_bytes = max_message_bytes
        self._server = self._make_server()

    def _make_server(self) -> aio.Server:
        limits = self._settings.limits
        keepalive_ms = int(limits.keepalive_s * 1000)
        keepalive_timeout_ms = int(limits.keepalive_timeout_s * 1000) or _NO_LIMIT_MS
        server = aio.server(
            options=[
                ("grpc.max_receive_message_length", self._max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", limits.max_concurrent_streams),
                ("grpc.keepalive_time_ms", keepalive_ms),
                ("grpc.keepalive_timeout_ms", keepalive_timeout_ms),
                # Ends a silent connection with an open call; 60 s by default.
                ("grpc.http2.ping_timeout_ms", keepalive_timeout_ms),
                # Open calls go on; gRPC varies the age by a tenth.
                ("grpc.max_connection_age_ms", int(limits.max_connection_age_s * 1000) or _NO_LIMIT_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", min(10_000, keepalive_ms)),
                # Without this a second server would share the port and take half of the calls, silently.
                ("grpc.so_reuseport", 0),
            ]
        )
        server.add_generic_rpc_handlers((self._handlers,))
        return server

    async def start(self) -> None:
        """Nothing to do: grpc starts when it listens."""

    async def listen(self) -> None:
        """Accept connections. Raises SettingsError."""
        address = join_address(*self._bound.getsockname()[:2])
        self._bound.close()
        try:
            if self._credentials:
                port = self._server.add_secure_port(address, self._credentials.for_grpc())
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if port == 0:
            raise SettingsError(f"cannot listen on {address}: another process took the port during the start")
        await self._server.start()

    async def allow_messages(self, max_bytes: int) -> None:
        """Before it listens: grpc takes the size when a server is made."""
        if max_bytes > self._max_message_bytes:
            self._max_message_bytes = max_bytes
            self._server = self._make_server()

    async def stop(self, grace_s: float) -> None:
        """Send clients elsewhere, let calls that have begun end within the time, then cancel them."""
        if grace_s > 0:
            await self._take_waiting_calls()
        stopping = asyncio.create_task(self._server.stop(grace_s))
        await asyncio.sleep(0)  # GOAWAY is on its way, before the answers
        self._answering.set()
        await stopping

    async def _take_waiting_calls(self) -> None:
        """grpc cancels calls that it has received and not handed over, and while they are many it hands over one at a
        time. Answers are held meanwhile: most callers send their next call when they have one."""
        self._answering.clear()
        for _ in range(_MAX_TAKING_TURNS):
            seen = self._calls_begun
            await asyncio.sleep(_TAKING_TURN_S)
            if self._calls_begun == seen:
                return

    def publish_health(self, answers: Sequence[CheckAnswer]) -> None:
        """Nothing to do: a handler answers Check."""

    def retry_waiting(self) -> None:
        """Nothing to do: each request awaits its own load."""

    def reload_tls(self) -> None:
        """Read the TLS files again, for new connections. Raises ValueError or OSError, and keeps what it had."""
        if self._credentials:
            self._credentials.reload()

    def stats(self) -> None:
        """grpc has none for us."""

    def _wrap(self, rpc: Rpc) -> Any:
        """No deserializer: grpc would answer UNKNOWN, with internals, to a message that cannot be decoded."""
        if rpc.kind == "unary_unary":
            return grpc.unary_unary_rpc_method_handler(self._unary(rpc), response_serializer=rpc.encode)
        if rpc.kind == "unary_stream":
            return grpc.unary_stream_rpc_method_handler(self._stream(rpc), response_serializer=rpc.encode)
        return grpc.stream_stream_rpc_method_handler(self._stream(rpc), response_serializer=rpc.encode)

    def _unary(self, rpc: Rpc) -> Callable[[bytes, Any], Awaitable[Any]]:
        async def handle(data: bytes, context: Any) -> Any:
            call = self._call(context)
            try:
                response = await rpc.handle(rpc.decode(data), call)
                await self._answering.wait()
                if call.trailers:
                    context.set_trailing_metadata(tuple(call.trailers))
                return response
            except Exception as error:
                return await _abort(context, rpc, error, call.request_id)

        return handle

    def _stream(self, rpc: Rpc) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def decoded(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
            async for data in messages:
                yield rpc.decode(data)

        async def handle(received: Any, context: Any) -> AsyncIterator[Any]:
            call = self._call(context)
            try:
                request = rpc.decode(received) if rpc.kind == "unary_stream" else decoded(received)
                async for response in rpc.handle(request, call):
                    yield response
            except Exception as error:
                await _abort(context, rpc, error, call.request_id)

        return handle

    def _call(self, context: Any) -> Call:
        self._calls_begun += 1
        remaining = context.time_remaining()
        return Call(
            metadata=text_metadata(context.invocation_metadata() or ()),
            certificate_names=certificate_names(context.auth_context()),
            deadline_ns=0 if remaining is None else max(1, self._now_ns() + int(remaining * 1e9)),
            peer_address=peer_address(context.peer()),
        )


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


_STATUS = {code.value[0]: code for code in grpc.StatusCode}


async def _abort(context: Any, rpc: Rpc, error: Exception, request_id: str) -> None:
    response = _respond(rpc, error, request_id)
    await context.abort(_STATUS[response.code], response.text, response.trailers)


def _respond(rpc: Rpc, error: Exception, request_id: str) -> Answer:
    if isinstance(error, RequestFailed):
        return error.response
    response = answer(error, request_id)
    if response.code is Code.INTERNAL:
        log.error("%s failed, request id %s", rpc.path, request_id, exc_info=error)
    return response
