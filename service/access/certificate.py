# SPDX-License-Identifier: Apache-2.0
"""Loads server certificates into Python's ssl, for the metrics port. Checks them for the Python front, whose library
does not explain errors, and reads when one expires."""

from __future__ import annotations

import base64
import calendar
import re
import ssl
import time
from pathlib import Path

# OpenSSL accepts all three names.
_PEM = re.compile(r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]+)-----END ")
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}  # UTCTime and GeneralizedTime
_VERSION = 0xA0


def server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Raises ValueError in one line. No sessions are resumed, so there are no ticket keys to renew."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_cert_chain(certificate, key, password="")  # else it would ask at the terminal
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except OSError as error:
        files = ", ".join(str(path) for path in (certificate, key, client_ca) if path)
        raise ValueError(f"{files}: {getattr(error, 'reason', None) or error}") from None
    return context


def expiry(certificate: Path) -> float | None:
    """When the first certificate of a PEM file expires, in seconds since 1970; None if that cannot be read."""
    try:
        pem = _PEM.search(certificate.read_text(encoding="latin-1"))
        return _not_after(base64.b64decode(pem[1])) if pem else None
    except (OSError, IndexError, KeyError, ValueError):
        return None


def _not_after(der: bytes) -> int:
    """Certificate > TBSCertificate: version (optional), serial number, algorithm, issuer, validity (RFC 5280, 4.1)."""
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    tag, _, rest = _element(fields)
    if tag != _VERSION:
        rest = fields
    for _ in range(3):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, end = _element(validity)
    tag, text, _ = _element(end)
    return calendar.timegm(time.strptime(text.decode(), _TIMES[tag]))


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """The first element of DER: tag, contents, what follows it."""
    size, start = data[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[2:start], "big")
    return data[0], data[start : start + size], data[start + size :]
