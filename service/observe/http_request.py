# SPDX-License-Identifier: Apache-2.0
"""Reads one HTTP/1.1 request without a body, within a size. The caller bounds its time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from dataclasses import dataclass
from urllib.parse import parse_qs

MOST_BYTES = 8 << 10  # request line and headers; what a browser sends is a tenth of it


class BadRequest(Exception):
    """The text is for the caller, who gets it with `status`; the connection ends."""

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

    def number(self, name: str, default: int, most: int) -> int:
        """Raises BadRequest."""
        value = self.one(name)
        if value is None:
            return default
        if not re.fullmatch("[0-9]{1,9}", value) or not 1 <= int(value) <= most:
            raise BadRequest(400, f"{name}: expected a number from 1 to {most}, got {value[:80]!r}")
        return int(value)


@dataclass(frozen=True)
class Request:
    """path: without its query. token: of `Authorization: Bearer`, or the password of `Basic`; empty without one."""

    method: str
    path: str
    query: Query
    accept: str
    takes_gzip: bool
    token: str
    keep_alive: bool


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Raises BadRequest; EOFError when the peer has closed its side."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequest(431, f"expected a request of at most {MOST_BYTES} bytes") from None
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
        token=_token(headers.get("authorization", "")),
        keep_alive="close" not in connection if version == "HTTP/1.1" else "keep-alive" in connection,
    )


def _takes_gzip(accept_encoding: str) -> bool:
    weights = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.partition(";")
        weights[name.strip()] = parameters.replace(" ", "")
    weight = weights.get("gzip", weights.get("*", "q=0"))
    return not re.fullmatch(r"q=0(\.0*)?", weight)


def _token(authorization: str) -> str:
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials, validate=True).decode("latin-1").partition(":")[2]
        except binascii.Error:
            return ""
    return ""
