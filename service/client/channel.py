# SPDX-License-Identifier: Apache-2.0
"""How a client connects: channel options, balancing and TLS. The same for the sync and the asyncio channel."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import grpc

Balancing = Literal["pick_first", "round_robin", "weighted_round_robin"]

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # The server limits requests, and the size of an answer follows from its request.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Detect dead connections; the interval stays within the server's limit of pings.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # gRPC's default is 1 s before it connects again, longer than our first retries wait.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


@dataclass(frozen=True)
class Tls:
    """How a client connects with TLS. All are paths of PEM files.

    Args:
        root_ca: The authorities to trust. Default: the system's.
        cert: The client's own certificate, for servers that ask for one.
        key: Its private key.
        server_name: The name in the server's certificate, if it is not that of the target.
    """

    root_ca: Path | str | None = None
    cert: Path | str | None = None
    key: Path | str | None = None
    server_name: str | None = None  # if the certificate has another name than the target

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("a client certificate needs its key: give both cert and key, or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """The files, read, as gRPC takes them."""
        return grpc.ssl_channel_credentials(_read(self.root_ca), _read(self.key), _read(self.cert))


def key_metadata(key: str | None) -> dict[str, str]:
    """The metadata of a caller with a key. Raises ValueError for an empty key."""
    if not key:
        return {}
    if not key.isascii() or not key.isprintable():
        raise ValueError("api_key: expected one line of ASCII")
    return {"authorization": f"Bearer {key}"}


def token_metadata(path: Path | None) -> dict[str, str]:
    """The metadata of a caller with a token, which is the whole file. Raises ValueError for an empty file."""
    if path is None:
        return {}
    token = path.read_text(encoding="latin-1").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ValueError(f"{path}: expected a token, one line of ASCII")
    return {"authorization": f"Bearer {token}"}


def service_config(balancing: Balancing) -> dict[str, Any]:
    """How gRPC spreads calls over the servers of a target. Unhealthy servers get none. Retries are the client's own:
    see retry.py."""
    policies: list[dict[str, Any]] = [{balancing: {}}]
    if balancing == "weighted_round_robin":
        # Servers report their load apart from requests; a gRPC version that does not know a policy uses the next one.
        policies = [
            {balancing: {"enableOobLoadReport": True, "oobReportingPeriod": "5s"}},
            {"round_robin": {}},
        ]
    return {"loadBalancingConfig": policies, "healthCheckConfig": {"serviceName": "fused_mlp.v1.Inference"}}


def channel_options(tls: Tls | None, balancing: Balancing = "pick_first") -> list[tuple[str, int | str]]:
    options: list[tuple[str, int | str]] = list(CHANNEL_OPTIONS)
    if balancing not in get_args(Balancing):
        raise ValueError(f"balancing: expected one of {', '.join(get_args(Balancing))}; got {balancing!r}")
    if balancing != "pick_first":
        options.append(("grpc.service_config", json.dumps(service_config(balancing))))
    if tls and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def open_channel(target: str, tls: Tls | None, balancing: Balancing = "pick_first") -> grpc.Channel:
    options = channel_options(tls, balancing)
    if tls:
        return grpc.secure_channel(target, tls.credentials(), options)
    return grpc.insecure_channel(target, options)


def _read(path: Path | str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def caller_metadata(token_file: Path | None) -> dict[str, str]:
    """The key as metadata: from the file, else from FUSED_MLP_API_KEY. Raises OSError, or ValueError without the
    key."""
    return token_metadata(token_file) or key_metadata(os.environ.get("FUSED_MLP_API_KEY"))
