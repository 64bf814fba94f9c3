# SPDX-License-Identifier: Apache-2.0
"""One health check, without the generated messages: `fused-mlp health` runs every few seconds in a container, and
importing protobuf takes longer than the call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import grpc

from fused_mlp.service.client.channel import Tls, open_channel
from fused_mlp.service.client.errors import PredictError

if TYPE_CHECKING:
    from fused_mlp.service.client.connection import HealthStatus

_STATUSES: tuple[HealthStatus, ...] = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


def check_health(
    target: str,
    service: str = "",
    *,
    timeout_s: float | None = None,
    tls: Tls | None = None,
    metadata: Mapping[str, str] | None = None,
) -> HealthStatus:
    """grpc.health.v1 of the server, or of one service or model. Raises PredictError."""
    with open_channel(target, tls) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", request_serializer=_request, response_deserializer=_status
        )
        try:
            status: HealthStatus = check(service, timeout=timeout_s, metadata=tuple((metadata or {}).items()))
        except grpc.RpcError as error:
            raise PredictError.from_rpc(error, target=target, secure=tls is not None) from None
    return status


def _request(service: str) -> bytes:
    """HealthCheckRequest: field 1 is the name."""
    name = service.encode()
    if not name:
        return b""
    length, prefix = len(name), bytearray(b"\x0a")
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(prefix) + bytes([length]) + name


def _status(response: bytes) -> HealthStatus:
    """HealthCheckResponse: field 1 is the status, left out when it is 0."""
    number = response[1] if response[:1] == b"\x08" else 0
    return _STATUSES[number] if number < len(_STATUSES) else "UNKNOWN"
