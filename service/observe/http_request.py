# SPDX-License-Identifier: Apache-2.0
"""Reads one HTTP/1.1 request without a body, within a size. The caller bounds its time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qs

MAX_BYTES = 8 << 10  # request line and headers; a browser sends about a tenth of it
# Readers that take different copies of a repeated header disagree on the caller, or on where the next request begins.
_SINGLE = ("host", "content-length", "transfer-encoding", "authorization", "x-api-key")


class BadRequest(Exception):
    """The text goes to the caller, with `status`; the connection is closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Query(dict[str, list[str]]):
    """The values of each name, as they came."""

    def all(self, name: str) -> list[str]:
        return self.get(name, [])

    def one(self, name: str) -> str | None:
        """The first; None without any."""
        return next(iter(self.all(name)), None)

    def choice(self, name: str, *choices: str) -> str | None:
        """One of `choices`, None without any. Raises BadRequest."""
        value = self.one(name)
        if value is not None and value not in choices:
            raise BadRequest(400, f"{name}: expected {' or '.join(choices)}, got {value[:80]!r}")
        return value

    def number(self, name: str, default: int, max_value: int) -> int:
        """Raises BadRequest."""
        value = self.one(name)
        if value is None:
            return default
        if not re.fullmatch("[0-9]{1,9}", value) or not 1 <= int(value) <= max_value:
            raise BadRequest(400, f"{name}: expected a number from 1 to {max_value}, got {value[:80]!r}")
        return int(value)


@dataclass(frozen=True)
class Request:
    """path: without its query. credentials: the headers that carry a key, the password of `Basic` included. host: None
    without such a header, which HTTP/1.0 allows."""

    method: str
    path: str
    query: Query
    accept: str
    takes_gzip: bool
    credentials: Mapping[str, str]
    host: str | None
    keep_alive: bool


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Raises BadRequest; EOFError when the peer has closed its side."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequest(431, f"expected a request of at most {MAX_BYTES} bytes") from None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(400, "expected a request of HTTP/1.1")
    method, target, version = words
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest(400, "expected headers as name: value")
        if name.lower() in headers and name.lower() in _SINGLE:
            raise BadRequest(400, f"expected {name.lower()} once")
        headers[name.lower()] = value.strip()
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise BadRequest(400, "expected a request without a body")
    connection = headers.get("connection", "").lower()
    path, _, query = target.partition("?")
    return Request(
        method=method,
        path=path,
        query=Query(parse_qs(query, keep_blank_values=True)),
        accept=headers.get("accept", ""),
        takes_gzip=_takes_gzip(headers.get("accept-encoding", "")),
        credentials=_credentials(headers),
        host=headers.get("host"),
        keep_alive="close" not in connection if version == "HTTP/1.1" else "keep-alive" in connection,
    )


def _takes_gzip(accept_encoding: str) -> bool:
    weights = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.partition(";")
        weights[name.strip()] = parameters.replace(" ", "")
    weight = weights.get("gzip", weights.get("*", "q=0"))
    return not re.fullmatch(r"q=0(\.0*)?", weight)


def _credentials(headers: Mapping[str, str]) -> dict[str, str]:
    shown = {name: headers[name] for name in ("authorization", "x-api-key") if name in headers}
    scheme, _, encoded = shown.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        with suppress(binascii.Error):
            password = base64.b64decode(encoded, validate=True).decode("latin-1").partition(":")[2]
            shown["authorization"] = f"Bearer {password}"
    return shown
