# SPDX-License-Identifier: Apache-2.0
"""A scripted peer that means harm: it counts the bytes it sends and takes being cut off for an answer. It connects
from a host of its own. And the header blocks and messages that several attacks share."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from typing import Any, Self

from hyperframe.frame import ContinuationFrame, Frame, HeadersFrame, PingFrame, SettingsFrame

from tests.support.peer import TIMEOUT_S, Peer

ATTACKER_HOST = "127.0.0.2"
BLOCKED_S = 2.0  # a server that reads nothing for this long has stopped reading
ENHANCE_YOUR_CALM = 11


class Attacker(Peer):
    """`deaf`: never reads. Otherwise what the server sends is read and dropped with each write; pings are answered."""

    def __init__(
        self, port: int, *, host: str = ATTACKER_HOST, settings: dict[int, int] | None = None,
        deaf: bool = False, hello: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        self.sent_bytes = 0
        self.cut_off = False
        self._polite = hello
        super().__init__(port, host=host, hello=hello, **options)
        self.deaf = deaf
        if settings:
            self.send(SettingsFrame(0, settings))

    def ready(self) -> Self:
        """The server's SETTINGS have come and are acknowledged; all that was sent before has been read."""
        seen = self.pings_answered
        self.send(PingFrame(0, b"attacker"))
        while not self.cut_off and self.pings_answered == seen:
            self._take(TIMEOUT_S)
        return self

    def write(self, data: bytes) -> None:
        if self.cut_off:
            return
        try:
            self._socket.settimeout(BLOCKED_S)
            self._socket.sendall(data)
            self.sent_bytes += len(data)
        except OSError:
            self.cut_off = True

    def write_some(self, data: bytes) -> None:
        """As much as the server's buffers take at once."""
        self._socket.setblocking(False)
        try:
            self.sent_bytes += self._socket.send(data)
        except BlockingIOError:
            return
        except OSError:
            self.cut_off = True

    def strike(self, *frames: Frame | bytes) -> bool:
        """Send, and drop what has come back. False: the server has ended the connection."""
        self.write(b"".join(frame if isinstance(frame, bytes) else frame.serialize() for frame in frames))
        if not self.deaf:
            self.swallow()
        return not self.cut_off

    def swallow(self) -> None:
        while not self.cut_off and self._take(0):
            pass

    @property
    def gone(self) -> bool:
        return self.cut_off or self._socket.fileno() < 0

    def wait_cut_off(self, seconds: float) -> bool:
        """Whether the server ends the connection in that time, however much it sends before."""
        deadline = time.monotonic() + seconds
        while not self.cut_off and self._take(max(0.0, deadline - time.monotonic())):
            pass
        return self.cut_off

    def _take(self, seconds: float) -> bool:
        """Read what comes in that time. False: nothing, or the end."""
        try:
            self._socket.settimeout(seconds)
            data = self._socket.recv(1 << 18)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            data = b""
        finally:
            self._socket.settimeout(TIMEOUT_S)
        self.cut_off |= not data
        self._skim(data)
        return bool(data)

    def _skim(self, data: bytes) -> None:
        """Acknowledge SETTINGS (after a preface), answer pings and count answers to ours, skip the rest: to decode it
        is slow."""
        data, at = self._received + data, 0
        while len(data) - at >= 9 + (length := int.from_bytes(data[at : at + 3], "big")):
            kind, acknowledges = data[at + 3], data[at + 4] & 1
            if kind == SettingsFrame.type and not acknowledges and self._polite:
                self.send(SettingsFrame(0, flags=["ACK"]))
            if kind == PingFrame.type and not acknowledges:
                self.send(PingFrame(0, data[at + 9 : at + 17], flags=["ACK"]))
            self.pings_answered += kind == PingFrame.type and acknowledges
            at += 9 + length
        self._received = data[at:]


def repeat(strike: Callable[[], bool], *, seconds: float, times: int) -> None:
    """Until the time is up, the count is reached or the strike reports that the connection has ended."""
    deadline = time.monotonic() + seconds
    for _ in range(times):
        if time.monotonic() > deadline or not strike():
            return


# ---- Header blocks ----


def literal(name: bytes, value: bytes, *, indexed: bool) -> bytes:
    """One field in HPACK; `indexed` puts it into the dynamic table, where one byte names it from then on."""
    first = b"\x40" if indexed else b"\x00"
    return first + _length(len(name)) + name + _length(len(value)) + value


def _length(value: int) -> bytes:
    """An HPACK integer with a prefix of 7 bits."""
    if value < 127:
        return bytes([value])
    value -= 127
    parts = [127]
    while value >= 128:
        parts.append(value % 128 + 128)
        value //= 128
    return bytes([*parts, value])


NEWEST = b"\xbe"  # the field that was put into the dynamic table last: index 62


def request_fields(path: bytes) -> bytes:
    """The fields of a call in as few bytes as there are, without touching the dynamic table."""
    return (
        b"\x83\x86\x01\x01x"  # POST, http, the authority x
        + b"\x04" + _length(len(path)) + path
        + literal(b"content-type", b"application/grpc", indexed=False)
        + literal(b"te", b"trailers", indexed=False)
    )  # fmt: skip


def header_block(stream: int, block: bytes, *, frame_bytes: int = 16384, end: bool = True) -> list[Frame]:
    """HEADERS and as many CONTINUATION as it takes. `end`: with END_HEADERS on the last."""
    parts = [block[i : i + frame_bytes] for i in range(0, len(block), frame_bytes)] or [b""]
    frames: list[Frame] = [HeadersFrame(stream, parts[0])]
    frames += [ContinuationFrame(stream, part) for part in parts[1:]]
    if end:
        frames[-1].flags.add("END_HEADERS")
    return frames


# ---- Messages ----


def empty_blocks(size: int) -> bytes:
    """About that much gzip that unpacks to nothing, in the blocks that cost zlib most: each has Huffman tables of its
    own, and nothing but its end behind them (RFC 1951, 3.2.7)."""
    bits: list[int] = []

    def put(value: int, count: int) -> None:
        bits.extend(value >> index & 1 for index in range(count))

    def block(last: int) -> None:
        put(last | 2 << 1, 3)  # with dynamic tables
        put(0, 5)  # 257 literal codes
        put(0, 5)  # 1 distance code
        put(14, 4)  # 18 lengths of the code below, in the order of the RFC
        lengths = {18: 1, 0: 2, 1: 2}
        for symbol in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1):
            put(lengths.get(symbol, 0), 3)
        for zeros in (138, 118):  # no code for the 256 literals
            bits.append(0)
            put(zeros - 11, 7)
        bits.extend((1, 1, 1, 0))  # the end has a code of one bit, the distance none
        bits.append(0)  # the end

    def packed() -> bytes:
        bits.extend([0] * (-len(bits) % 8))
        made = bytes(sum(bits[start + bit] << bit for bit in range(8)) for start in range(0, len(bits), 8))
        bits.clear()
        return made

    for _ in range(8):
        block(0)
    body = packed()
    block(1)
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + body * (size // len(body)) + packed() + bytes(8)


def bomb(unpacked_bytes: int) -> bytes:
    """As little gzip as unpacks to that many bytes."""
    return gzip.compress(bytes(unpacked_bytes), 9)
