# SPDX-License-Identifier: Apache-2.0
"""Lets only known callers administer the server: all of the admin service, loading and unloading."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from fused_mlp.service.access.callers import Callers
from fused_mlp.service.errors import CODES, PermissionDenied, ServiceError, Unauthenticated
from fused_mlp.service.fronts.rpc import Call, Rpc

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


class Guard:
    """`callers`: None allows every caller, which the settings accept on loopback addresses only."""

    def __init__(self, callers: Callers | None = None) -> None:
        self._callers = callers
        self.refused: Counter[str] = Counter(
            {CODES[kind].name: 0 for kind in (Unauthenticated, PermissionDenied)}
        )
        self._log_from_s = 0.0

    def protect(self, rpc: Rpc) -> Rpc:
        def handle(request: Any, call: Call) -> Any:
            self.check(call, rpc.path)
            return rpc.handle(request, call)

        return replace(rpc, handle=handle)

    def check(self, call: Call, path: str) -> None:
        """Raises Unauthenticated without a certificate or token, PermissionDenied with one that is not listed."""
        if self._callers is None or self._callers.has_name(call.certificate_names):
            return
        header = call.metadata.get("authorization")
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() == "bearer" and self._callers.has_token(token.strip()):
            return
        if header is None and not call.certificate_names:
            self._refuse(
                path, Unauthenticated("expected a token, or a certificate, of a caller that is listed")
            )
        self._refuse(path, PermissionDenied("this caller is not listed"))

    def _refuse(self, path: str, error: ServiceError) -> None:
        self.refused[CODES[type(error)].name] += 1
        now = time.monotonic()
        if now >= self._log_from_s:  # a caller can cause any number of these
            self._log_from_s = now + _LOG_EVERY_S
            log.warning("refused %s: %s", path, error)
        raise error
