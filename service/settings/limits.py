# SPDX-License-Identifier: Apache-2.0
"""Limits of requests, connections and calls that protect the server from a peer: the fields of FUSED_MLP_LIMITS. Few
people change them, so they share one setting. The native front keeps all of them, the Python front those that
grpc.aio has too (docs/operations/settings.md)."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

_Count = Annotated[int, Field(ge=1, le=1 << 20)]
_MAX_SECONDS = 20 * 86400  # grpc counts milliseconds in 32 bits, which is 24 days
_Seconds = Annotated[float, Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]


class Limits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_request_rows: _Count = 4096
    """rows in one request; beyond it INVALID_ARGUMENT"""
    max_message_bytes: Annotated[int, Field(ge=1024)] | None = None
    """largest message, also after gzip; default: from the row limit and the widest model; beyond it
    RESOURCE_EXHAUSTED"""
    max_header_bytes: Annotated[int, Field(ge=1024, le=1 << 20)] = 16 << 10
    """headers of one request; beyond it RESOURCE_EXHAUSTED"""
    max_concurrent_streams: _Count = 1024
    """concurrent calls on one connection; more: REFUSED_STREAM, or PROTOCOL_ERROR once the peer knows"""
    max_connections: _Count = 1024
    """connections at once; then the idlest makes room, or new ones are closed"""
    max_connections_per_peer: _Count | None = None
    """the same for one address (of IPv6: the first 64 bits); default: half of max_connections"""
    max_buffered_bytes: Annotated[int, Field(ge=1024)] = 512 << 20
    """memory of requests of all connections that wait, for the rest of their message or for their turn; at least 5
    times max_message_bytes is used; beyond it RESOURCE_EXHAUSTED"""
    max_output_bytes: Annotated[int, Field(ge=1024)] = 1 << 20
    """answers that wait for one connection's peer to read; beyond it its requests are held"""
    max_total_output_bytes: Annotated[int, Field(ge=1024)] = 256 << 20
    """answers that wait for the peers of all connections; when it is short, max_output_bytes of each is lower"""
    max_call_bytes: Annotated[int, Field(ge=1024)] = 128 << 20
    """open calls of all connections, 2 KiB each and their metadata; beyond it REFUSED_STREAM"""
    max_control_calls: _Count = 256
    """concurrent calls on one connection that are no predictions (health, reflection, models); beyond it
    RESOURCE_EXHAUSTED"""
    max_control_bytes: Annotated[int, Field(ge=1024)] = 64 << 20
    """such calls of all connections, 10 KiB each, their metadata and messages; beyond it RESOURCE_EXHAUSTED"""
    max_resets_per_s: _Count = 500
    """calls that one connection may reset early in a second; more, and more than half of its calls: GOAWAY
    ENHANCE_YOUR_CALM"""
    max_pings_per_s: _Count = 100
    """pings that one connection may send in a second, plus one for each frame of an answer; more: GOAWAY
    ENHANCE_YOUR_CALM"""
    max_settings_per_s: _Count = 20
    """SETTINGS frames that one connection may send in a second, plus one for every 64 frames of answers; more: GOAWAY
    ENHANCE_YOUR_CALM"""
    max_control_frames_per_s: _Count = 1000
    """other cheap frames per connection and second (WINDOW_UPDATE, PRIORITY, empty DATA, unknown ones), plus four for
    each frame of an answer; more: GOAWAY ENHANCE_YOUR_CALM"""
    handshake_timeout_s: _Seconds = 10.0
    """time for TLS and the first SETTINGS, then the connection is closed; 0: no limit"""
    receive_timeout_s: _Seconds = 20.0
    """time for the rest of a message that has begun, then DEADLINE_EXCEEDED; 0: no limit"""
    send_timeout_s: _Seconds = 20.0
    """time in which a peer must take 16 KiB, or all there is, of what waits for it; else the stream is reset or the
    socket closed; 0: no limit"""
    keepalive_s: Annotated[float, Field(gt=0, le=_MAX_SECONDS, allow_inf_nan=False)] = 60.0
    """ping a connection after this much silence"""
    keepalive_timeout_s: _Seconds = 20.0
    """silence after a ping that closes the connection; 0: no limit"""
    idle_timeout_s: _Seconds = 3600.0
    """GOAWAY to a connection that had no calls for this long; 0: never"""
    first_message_timeout_s: _Seconds = 300.0
    """time for the first message of a stream of predictions, then DEADLINE_EXCEEDED; 0: no limit"""
    control_idle_timeout_s: _Seconds = 300.0
    """time without a request that ends a reflection stream with DEADLINE_EXCEEDED; 0: never"""
    max_connection_age_s: _Seconds = 0.0
    """GOAWAY to a connection of this age; its calls finish and the client reconnects; 0: never"""


def read_json(value: Any) -> Any:
    """The value of a JSON setting: text from a variable or an option, or data that was read already."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON at character {error.pos + 1}") from None
