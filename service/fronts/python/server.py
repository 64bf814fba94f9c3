"""The Python front: grpc.aio in front of the handlers. Owns the options of grpc (limits, keepalive, status codes);
knows nothing of models. Runs on the asyncio loop."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from fused_mlp.service.errors import Answer, Code, answer
from fused_mlp.service.fronts.python.predictor import RequestFailed
from fused_mlp.service.fronts.rpc import Call, Rpc, text_metadata
from fused_mlp.service.settings.settings import Settings, SettingsError, join_address

log = logging.getLogger(__name__)

_NO_LIMIT_MS = (1 << 31) - 1  # gRPC's own value for "never"


@dataclass(frozen=True)
class Listen:
    """Where a server listens, what for, and the settings that say so."""

    host: str
    port: int
    what: str = "gRPC"
    settings: str = "FUSED_MLP_GRPC_PORT or _HOST"


class PythonFront:
    name = "python"

    def __init__(
        self,
        settings: Settings,
        rpcs: Sequence[Rpc],
        max_message_bytes: int,
        now_ns: Callable[[], int],
        listen: Listen | None = None,
    ) -> None:
        self._now_ns = now_ns
        self._listen = listen or Listen(settings.host, settings.grpc_port)
        self._settings = settings
        keepalive_ms = int(settings.limits.keepalive_s * 1000)
        keepalive_timeout_ms = int(settings.limits.keepalive_timeout_s * 1000) or _NO_LIMIT_MS
        self._server = aio.server(
            options=[
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", settings.limits.max_concurrent_streams),
                ("grpc.keepalive_time_ms", keepalive_ms),
                ("grpc.keepalive_timeout_ms", keepalive_timeout_ms),
                # The one that ends a silent connection with an open call; 60 s unless set.
                ("grpc.http2.ping_timeout_ms", keepalive_timeout_ms),
                ("grpc.http2.min_ping_interval_without_data_ms", min(10_000, keepalive_ms)),
                # Without this a second server would share the port and take half of the calls, silently.
                ("grpc.so_reuseport", 0),
            ]
        )
        self._server.add_generic_rpc_handlers((_Handlers({rpc.path: self._wrap(rpc) for rpc in rpcs}),))

    async def start(self) -> int:
        """Listen; returns the port."""
        address = join_address(self._listen.host, self._listen.port)
        try:
            if credentials := _credentials(self._settings):
                port = self._server.add_secure_port(address, credentials)
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if port == 0:
            raise SettingsError(
                f"cannot listen on {address} for {self._listen.what}: in use or not allowed; "
                f"set {self._listen.settings}"
            )
        await self._server.start()
        return int(port)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let those under way end within the time, then cancel them."""
        await self._server.stop(grace_s)

    def stats(self) -> None:
        """grpc keeps its own to itself."""

    def _wrap(self, rpc: Rpc) -> Any:
        """No deserializer: grpc would answer UNKNOWN, with internals, to a message that cannot be decoded."""
        if rpc.kind == "unary_unary":
            return grpc.unary_unary_rpc_method_handler(self._unary(rpc), response_serializer=rpc.encode)
        if rpc.kind == "unary_stream":
            return grpc.unary_stream_rpc_method_handler(self._stream(rpc), response_serializer=rpc.encode)
        return grpc.stream_stream_rpc_method_handler(self._stream(rpc), response_serializer=rpc.encode)

    def _unary(self, rpc: Rpc) -> Callable[[bytes, Any], Awaitable[Any]]:
        async def handle(data: bytes, context: Any) -> Any:
            try:
                call = self._call(context)
                response = await rpc.handle(rpc.decode(data), call)
                if call.trailers:
                    context.set_trailing_metadata(tuple(call.trailers))
                return response
            except Exception as error:
                return await _abort(context, rpc, error)

        return handle

    def _stream(self, rpc: Rpc) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def decoded(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
            async for data in messages:
                yield rpc.decode(data)

        async def handle(received: Any, context: Any) -> AsyncIterator[Any]:
            try:
                request = rpc.decode(received) if rpc.kind == "unary_stream" else decoded(received)
                async for response in rpc.handle(request, self._call(context)):
                    yield response
            except Exception as error:
                await _abort(context, rpc, error)

        return handle

    def _call(self, context: Any) -> Call:
        remaining = context.time_remaining()
        return Call(
            metadata=text_metadata(context.invocation_metadata() or ()),
            deadline_ns=0 if remaining is None else max(1, self._now_ns() + int(remaining * 1e9)),
        )


def _credentials(settings: Settings) -> Any:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    try:
        pair = (settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes())
        authorities = settings.tls_client_ca.read_bytes() if settings.tls_client_ca else None
    except OSError as error:
        raise SettingsError(f"TLS: {error.strerror}: {error.filename}") from None
    return grpc.ssl_server_credentials([pair], authorities, require_client_auth=authorities is not None)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


_STATUS = {code.value[0]: code for code in grpc.StatusCode}


async def _abort(context: Any, rpc: Rpc, error: Exception) -> None:
    response = _respond(rpc, error)
    await context.abort(_STATUS[response.code], response.text, response.trailers)


def _respond(rpc: Rpc, error: Exception) -> Answer:
    if isinstance(error, RequestFailed):
        return error.response
    request_id = secrets.token_hex(8)
    response = answer(error, request_id)
    if response.code is Code.INTERNAL:
        log.error("%s failed, request id %s", rpc.path, request_id, exc_info=error)
    return response
