# SPDX-License-Identifier: Apache-2.0
"""TLS of the Python front: certificates that are replaced while it runs, the names in those of its peers, and their
addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import grpc

from fused_mlp.service.access.certificate import server_context
from fused_mlp.service.settings.settings import Settings, SettingsError

# Names in a verified certificate, by gRPC's properties.
_NAMES = {"x509_common_name": "CN:", "peer_dns": "DNS:", "peer_uri": "URI:"}


class Credentials:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        try:
            self._first = self._read()
        except (OSError, ValueError) as error:
            raise SettingsError(f"TLS: {error}") from None
        self._new: Any = None

    def reload(self) -> None:
        """Raises ValueError or OSError, and keeps what it had."""
        self._new = self._read()

    def for_grpc(self) -> Any:
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._take_new,
            require_client_authentication=self._settings.tls_client_ca is not None,
        )

    def _take_new(self) -> Any:
        """Called by gRPC before each handshake, on a thread of its own; None: nothing new."""
        new, self._new = self._new, None
        return new

    def _read(self) -> Any:
        certificate, key = self._settings.tls_certificate, self._settings.tls_key
        client_ca = self._settings.tls_client_ca
        assert certificate is not None
        assert key is not None
        server_context(certificate, key, client_ca)  # gRPC accepts a bad one, and then fails every handshake
        return grpc.ssl_server_certificate_configuration(
            [(key.read_bytes(), certificate.read_bytes())], client_ca.read_bytes() if client_ca else None
        )


def certificate_names(auth_context: Mapping[str, Sequence[bytes]]) -> list[str]:
    return [
        kind + value.decode(errors="replace")
        for name, kind in _NAMES.items()
        for value in auth_context.get(name, ())
    ]


def peer_address(peer: str) -> str:
    """As the native front writes it, from gRPC's ipv4:127.0.0.1:4711 or ipv6:%5B::1%5D:4711."""
    return unquote(peer.partition(":")[2])
