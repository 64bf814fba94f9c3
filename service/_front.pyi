# SPDX-License-Identifier: Apache-2.0
"""Stub of the compiled native front (service/csrc/front). A module of its own, because it links libnghttp2 and OpenSSL:
without them it cannot be imported, while the engine and the Python front work."""

import enum
from collections.abc import Sequence
from typing import TypedDict

from fused_mlp.service._engine import AllowedHosts, Callers, Engine, Router

class Limits:
    """What one peer, and all together, may hold and do. Times in seconds, 0 for none."""

    max_message_bytes: int
    max_header_bytes: int
    max_concurrent_streams: int
    max_output_bytes: int
    max_control_calls: int
    max_connections: int
    max_connections_per_peer: int
    """By address; 0: half of max_connections."""
    max_buffered_bytes: int
    max_total_output_bytes: int
    max_call_bytes: int
    max_control_bytes: int
    max_resets_per_s: int
    max_pings_per_s: int
    max_settings_per_s: int
    max_control_frames_per_s: int
    handshake_timeout_s: float
    receive_timeout_s: float
    send_timeout_s: float
    keepalive_s: float
    keepalive_timeout_s: float
    idle_timeout_s: float
    first_message_timeout_s: float
    control_idle_timeout_s: float
    max_connection_age_s: float
    def __init__(self) -> None: ...

class CallEventKind(enum.Enum):
    start = 0
    message = 1
    half_close = 2
    cancel = 3
    writable = 4
    failure = 5
    bad_end = 6
    shortage = 7
    wanted = 8

class CallEvent:
    """What happened to a call that Python answers. `start` of a unary call has its message in `body`;
    `failure` reports a prediction that ended as INTERNAL: its id in `path`, the reason in `body`;
    `bad_end` reports a connection that a limit or a mistake ended: its peer in `path`, the reason in `body`;
    `shortage` reports a call that was refused for lack of memory, likewise."""

    @property
    def kind(self) -> CallEventKind: ...
    @property
    def call(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def deadline_ns(self) -> int: ...
    @property
    def metadata(self) -> list[tuple[str, str | bytes]]: ...
    @property
    def certificate_names(self) -> list[str]:
        """Of the peer's verified certificate: CN:..., DNS:..., URI:..."""
    @property
    def peer_address(self) -> str:
        """Of `start`: 127.0.0.1:4711 or [::1]:4711."""
    @property
    def body(self) -> bytes: ...

class FrontStats(TypedDict):
    """Since the start, summed over all loops."""

    accepted: int
    connections: int
    """Open now."""
    ended: dict[str, int]
    """Connections by why they ended: docs/internals/native-front.md has the labels."""
    calls: int
    open_calls: int
    failures: int
    """Exceptions of the front itself; each ended a call or a connection."""
    refused: dict[int, int]
    """Calls that the front ended itself, by gRPC code, those that occurred."""
    memory: dict[str, tuple[int, int]]
    """Bytes charged to each budget now, and its limit: requests, answers, calls, control."""
    shortages: dict[str, int]
    """Calls refused because an account had no room for them: requests, calls, control."""
    received_bytes: int
    sent_bytes: int
    received_resets: int
    sent_resets: int
    tls_handshakes: int
    tls_failures: dict[str, int]

class FrontServer:
    """gRPC from socket to engine. Without an engine it serves `rpcs` alone; without those either, every unary
    call gets its own message back."""

    def __init__(
        self,
        *,
        engine: Engine | None = None,
        router: Router | None = None,
        listener: int = -1,
        rest_listener: int = -1,
        loops: int = 1,
        limits: Limits = ...,
        rpcs: Sequence[tuple[str, bool]] = (),
        certificate: str = "",
        key: str = "",
        client_ca: str = "",
        crl: str = "",
        cors_origins: Sequence[str] = (),
        callers: Callers | None = None,
        hosts: AllowedHosts = ...,
    ) -> None:
        """`listener`, `rest_listener`: descriptors of bound, non-blocking sockets, which it owns unless it raises; -1:
        none. `rpcs`: what Python answers, as (path, whether callers stream). `callers`: None where every caller may
        predict. Raises RuntimeError."""
    def start(self) -> None: ...
    def listen(self) -> None:
        """Accept connections, which are refused until then. Raises RuntimeError."""
    def begin_drain(self) -> None:
        """Stop accepting, say GOAWAY; calls that have begun go on."""
    def wait_drained(self, timeout_s: float) -> bool:
        """Until every connection is closed; False if the time ran out."""
    def stop(self) -> None: ...
    def reload_tls(self) -> None:
        """Read the TLS files again, for new connections. Raises RuntimeError, and keeps what it had."""
    def allow_messages(self, max_bytes: int) -> None:
        """Of this size at least, from now on."""
    def stats(self) -> FrontStats: ...
    def fileno(self) -> int:
        """Readable when drain() has something."""
    def drain(self, most: int = ...) -> list[CallEvent]:
        """Up to `most`, of each connection in turn."""
    def publish_health(self, answers: Sequence[tuple[str, int, Sequence[tuple[str, str]], bool]]) -> None:
        """What Health/Check answers from now on: name, status, trailers, whether it is the name of a model."""
    def retry_waiting(self) -> None:
        """Look again for models that requests wait for: the routes have changed."""
    def send(self, call: int, message: bytes) -> None:
        """Add a message to the answer; wait for `writable` before the next. A call that has ended is ignored."""
    def finish(
        self, call: int, code: int, text: str = "", trailers: Sequence[tuple[str, str]] = ()
    ) -> None: ...
    def message_done(self, call: int) -> None:
        """A streamed message was dealt with: the caller may send another."""

def rest_missing() -> str:
    """Why this build has no REST, and what to do; empty if it has."""

def nghttp2_bounds_continuations() -> bool:
    """False: this nghttp2 lacks the fix of CVE-2024-28182."""

def http_status_of(code: int) -> int:
    """What REST answers for a gRPC code."""
