# SPDX-License-Identifier: Apache-2.0
"""The files that say who the server is and who may call it: certificates and lists of callers. Read at the start, and
again while the server runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fused_mlp.service.access.callers import Callers
from fused_mlp.service.access.certificate import expiry, server_context
from fused_mlp.service.access.reloading import TICKET_KEYS_S, Reload
from fused_mlp.service.settings.settings import Settings, SettingsError, is_loopback

if TYPE_CHECKING:
    import ssl


log = logging.getLogger(__name__)


class ServerCredentials:
    """Raises SettingsError when callers cannot be read; None where every caller is allowed. Certificates are checked by
    what uses them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        certificates = settings.tls_client_ca is not None
        self.admin_callers = _read_callers(settings.callers.admin, certificates)
        self.metrics_callers = _read_callers(settings.callers.metrics, certificates=False)
        self.reloads: list[Reload] = []
        self.expiry_s: float | None = None
        self._warn_of_plain_text()

    def metrics_tls(self) -> ssl.SSLContext | None:
        """Raises ValueError in one line."""
        certificate, key = self._settings.tls_certificate, self._settings.tls_key
        if not self._settings.metrics_tls or certificate is None or key is None:
            return None
        return server_context(certificate, key)

    def watch(self, reload_tls: Iterable[Callable[[], None]]) -> None:
        """Fill `reloads`, for keep_reloading. `reload_tls`: of each port; raises in one line."""
        ports = (*reload_tls, self._read_expiry)

        def reload_all() -> None:
            for reload in ports:
                reload()

        if files := self._settings.tls_files:
            self._read_expiry()
            self.reloads.append(Reload("tls", files, reload_all, at_least_every_s=TICKET_KEYS_S))
        for name, callers in (
            ("admin_callers", self.admin_callers),
            ("metrics_callers", self.metrics_callers),
        ):
            if callers:
                self.reloads.append(Reload(name, [callers.path], callers.reload))

    def _read_expiry(self) -> None:
        certificate = self._settings.tls_certificate
        self.expiry_s = expiry(certificate) if certificate else None

    def _warn_of_plain_text(self) -> None:
        settings = self._settings
        admin_host = settings.admin_host if settings.admin_port else settings.host
        for host, callers, secure in (
            (admin_host, self.admin_callers, settings.tls_certificate),
            (settings.metrics_host, self.metrics_callers, settings.metrics_tls),
        ):
            if callers and callers.has_tokens and not secure and not is_loopback(host):
                log.warning("the tokens of %s come to %s in plain text: use TLS", callers.path, host)


def _read_callers(path: Path | None, certificates: bool) -> Callers | None:
    if path is None:
        return None
    try:
        return Callers(path, certificates=certificates)
    except (OSError, ValueError) as error:
        raise SettingsError(str(error)) from None
