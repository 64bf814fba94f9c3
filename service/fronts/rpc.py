# SPDX-License-Identifier: Apache-2.0
"""One RPC as data, and what a handler may know of a call. Handlers are plain asyncio functions that raise
errors of service.errors: the Python front serves all of them, the native front those it does not answer
itself. Knows nothing of grpc."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from fused_mlp.service.access.access import SUBJECT_HEADER
from fused_mlp.service.errors import InvalidInput

if TYPE_CHECKING:
    from fused_mlp.service._engine import Caller, Identity

# An answer of Health/Check: name, status, trailers, whether it is the name of a model.
CheckAnswer = tuple[str, int, Sequence[tuple[str, str]], bool]
# Loads a version (0: the default); done when the routes show the result.
Want = Callable[[str, int], Future[None]]
Kind = Literal["unary_unary", "unary_stream", "stream_stream"]


@dataclass(frozen=True)
class Call:
    """metadata: request headers, lower case, text values only; certificate_names: CN:..., DNS:... and URI:... of the
    peer's verified certificate, empty without one; peer_address: 127.0.0.1:4711; deadline_ns: on the engine's clock, 0
    for none; trailers: a handler adds them, an OK carries them; request_id: names the call in the log, and in errors
    whose text is not sent; identity: set when a guard has checked the caller."""

    metadata: Mapping[str, str]
    certificate_names: Sequence[str] = ()
    deadline_ns: int = 0
    trailers: list[tuple[str, str]] = field(default_factory=list)
    peer_address: str = ""
    request_id: str = field(default_factory=lambda: secrets.token_hex(8))
    identity: Identity | None = None

    @property
    def caller(self) -> Caller | None:
        return self.identity.caller if self.identity is not None else None


@dataclass(frozen=True)
class Rpc:
    """unary_unary: `await handle(request, call) -> response`; unary_stream: `handle(request, call)` is an async
    iterator of responses; stream_stream: the same, with an async iterator of requests."""

    path: str
    kind: Kind
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    handle: Callable[[Any, Call], Any]


def rpcs_of(service: ServiceDescriptor, handlers: Mapping[str, Callable[[Any, Call], Any]]) -> list[Rpc]:
    """One Rpc for each handler, typed by the service's descriptor. A handler for no method is a mistake."""
    methods = {method.name: method for method in service.methods}
    return [_rpc(service.full_name, methods[name], handle) for name, handle in handlers.items()]


def _rpc(service: str, method: MethodDescriptor, handle: Callable[[Any, Call], Any]) -> Rpc:
    kind: Kind = "unary_unary"
    if method.server_streaming:
        kind = "stream_stream" if method.client_streaming else "unary_stream"
    message = GetMessageClass(method.input_type)
    return Rpc(
        path=f"/{service}/{method.name}",
        kind=kind,
        decode=lambda data: decode(message, data),
        encode=lambda message: bytes(message.SerializeToString()),
        handle=handle,
    )


def decode(message: type[Any], data: bytes) -> Any:
    """Raises InvalidInput for bytes that are no such message."""
    try:
        return message.FromString(data)
    except DecodeError:
        name = message.DESCRIPTOR.name
        raise InvalidInput(f"message: expected a {name}, got bytes that cannot be read as one") from None


def text_metadata(pairs: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """The text part of request metadata. Of a key sent twice the last value counts; but names of callers are joined, so
    that `Access` refuses several."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if isinstance(value, str):
            found[key] = f"{found[key]},{value}" if key == SUBJECT_HEADER and key in found else value
    return found
