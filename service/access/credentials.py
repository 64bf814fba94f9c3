# SPDX-License-Identifier: Apache-2.0
"""The server's certificates and callers, and the rereading of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fused_mlp.service.access.access import Access
from fused_mlp.service.access.certificate import expiry, server_context
from fused_mlp.service.access.reloading import TICKET_KEYS_S, Reload
from fused_mlp.service.settings.settings import Settings

if TYPE_CHECKING:
    import ssl


class ServerCredentials:
    """Raises SettingsError when callers cannot be read. The servers check the certificates."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.access = Access(settings)
        self.reloads: list[Reload] = []
        self.expiry_s: float | None = None

    def metrics_tls(self) -> ssl.SSLContext | None:
        """Raises ValueError in one line."""
        certificate, key = self._settings.tls_certificate, self._settings.tls_key
        if not self._settings.metrics_tls or certificate is None or key is None:
            return None
        return server_context(certificate, key)

    def watch(self, reload_tls: Iterable[Callable[[], None]]) -> None:
        """Fills `reloads`, for keep_reloading. `reload_tls`: a function for each port, which raises in one line."""
        ports = (*reload_tls, self._read_expiry)

        def reload_all() -> None:
            for reload in ports:
                reload()

        if files := self._settings.tls_files:
            self._read_expiry()
            self.reloads.append(Reload("tls", files, reload_all, at_least_every_s=TICKET_KEYS_S))
        self.reloads += self.access.reloads()

    def _read_expiry(self) -> None:
        certificate = self._settings.tls_certificate
        self.expiry_s = expiry(certificate) if certificate else None
