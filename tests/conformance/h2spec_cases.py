# SPDX-License-Identifier: Apache-2.0
"""The cases of h2spec (RFC 9113 and RFC 7541) as raw frames: one row per case, with the answers that the RFC accepts.
Section numbers are those of RFC 7540, which h2spec uses; those that begin with "generic" and "hpack" are its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 1, 1, 4, 8, 32
(
    NO_ERROR,
    PROTOCOL,
    INTERNAL,
    FLOW_CONTROL,
    SETTINGS_TIMEOUT,
    CLOSED,
    FRAME_SIZE,
    REFUSED,
    CANCEL,
    COMPRESSION,
) = range(10)
MAX_WINDOW = 2**31 - 1
HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)

# Between two steps: until the answer has ended, SETTINGS are acknowledged, or DATA has come.
Wait = Literal["end", "ack", "data"]
# The last word on a case: an answer on stream 1, a ping that comes back, the end of the connection, DATA of one byte,
# or the codes of an error that may end the stream or must end the connection.
Accepts = (
    Literal["answer", "pong", "close", "ack", "byte"]
    | tuple[Literal["stream", "connection"], tuple[int, ...]]
)


@dataclass(frozen=True)
class Target:
    """A request that the port answers with DATA: its fields, and the body that ends it (none: the fields end it)."""

    fields: tuple[tuple[str, str], ...]
    body: bytes = b""


@dataclass(frozen=True)
class Case:
    name: str
    steps: Callable[[Target], Sequence[bytes | Wait]]
    accepts: Accepts
    hello: bool = True  # preface and SETTINGS are exchanged first


def stream_error(*codes: int) -> Accepts:
    """GOAWAY is as good: RFC 9113 lets any stream error end the connection."""
    return "stream", codes


def connection_error(*codes: int) -> Accepts:
    return "connection", codes


def frame(
    kind: int, stream: int = 0, payload: bytes = b"", flags: int = 0, *, length: int | None = None
) -> bytes:
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def string(value: bytes, huffman: bool = False) -> bytes:
    coded, flag = (HUFFMAN.encode(value), 0x80) if huffman else (value, 0)
    if len(coded) < 127:
        return bytes([flag | len(coded)]) + coded
    rest, size = len(coded) - 127, bytes([flag | 127])
    while rest >= 128:
        size, rest = size + bytes([rest % 128 | 128]), rest // 128
    return size + bytes([rest]) + coded


def literal(name: str | bytes, value: str | bytes, *, first: int = 0, huffman: bool = False) -> bytes:
    texts = (text.encode() if isinstance(text, str) else text for text in (name, value))
    return bytes([first]) + b"".join(string(text, huffman) for text in texts)


def block(fields: Sequence[tuple[str, str]]) -> bytes:
    """Literals without indexing: each block can be read by itself."""
    return b"".join(literal(name, value) for name, value in fields)


def fields_of(t: Target, *more: tuple[str, str], without: str = "", **changes: str) -> bytes:
    changed = {f":{name}": value for name, value in changes.items()}
    kept = [(name, changed.get(name, value)) for name, value in t.fields if name != without]
    return block([*kept, *more])


def headers(t: Target, stream: int = 1, *, end: bool = True, flags: int = END_HEADERS, fields: bytes | None = None,
            before: bytes = b"", after: bytes = b"") -> bytes:  # fmt: skip
    payload = before + (fields_of(t) if fields is None else fields) + after
    return frame(HEADERS, stream, payload, flags | (END_STREAM if end else 0))


def post(t: Target, *more: tuple[str, str]) -> bytes:
    return headers(t, end=False, fields=fields_of(t, *more, method="POST"))


def ask(t: Target) -> bytes:
    """A whole request, whose answer has DATA."""
    return headers(t, end=not t.body) + (data(t.body) if t.body else b"")


def data(payload: bytes = b"test", stream: int = 1, *, end: bool = True, flags: int = 0) -> bytes:
    return frame(DATA, stream, payload, flags | (END_STREAM if end else 0))


def more_headers(stream: int = 1, *, end: bool = True) -> bytes:
    return frame(CONTINUATION, stream, literal("x-dummy0", "x" * 4000), END_HEADERS if end else 0)


def priority(stream: int = 1, depends: int = 0, weight: int = 255, *, exclusive: bool = False) -> bytes:
    return frame(PRIORITY, stream, dependency(depends, weight, exclusive=exclusive))


def dependency(depends: int = 0, weight: int = 255, *, exclusive: bool = False) -> bytes:
    return (depends | (exclusive << 31)).to_bytes(4, "big") + bytes([weight])


def settings(*values: tuple[int, int]) -> bytes:
    return frame(SETTINGS, payload=b"".join(i.to_bytes(2, "big") + v.to_bytes(4, "big") for i, v in values))


def window(*values: int) -> bytes:
    return settings(*((4, value) for value in values))


def update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, stream, size.to_bytes(4, "big"))


def reset(stream: int = 1, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, stream, code.to_bytes(4, "big"))


def bad_huffman() -> dict[str, bytes]:
    """Values of x-test."""
    good = HUFFMAN.encode(b"test")
    pad = -sum(REQUEST_CODES_LENGTH[byte] for byte in b"test") % 8
    zeros = good[:-1] + bytes([good[-1] & (0xFF << pad) & 0xFF])
    return {
        "padding longer than 7 bits": good + b"\xff",
        "padded by zero": zeros,
        "contains EOS": b"\xff" * 4 + good,
    }


PONG_AFTER = frame(PING, payload=bytes(8))
UNKNOWN = frame(0x16, payload=bytes(8))
_FORMS = {"incremental": (0x40, 0x7A), "without indexing": (0x00, 0x0F2B), "never indexed": (0x10, 0x1F2B)}


def _hpack_forms() -> list[Case]:
    cases = []
    for form, (new, indexed) in _FORMS.items():
        known = indexed.to_bytes(1 + (indexed > 255), "big")  # the name is user-agent of the static table
        for huffman in (False, True):
            fields = {"indexed name": known + string(b"h2spec", huffman),
                      "new name": literal("x-test", "h2spec", first=new, huffman=huffman)}  # fmt: skip
            for kind, after in fields.items():
                name = f"generic/5 literal field {form}, {kind}{', Huffman' if huffman else ''}"
                cases.append(Case(name, lambda t, after=after: [headers(t, after=after)], "answer"))  # type: ignore[misc]
    return cases


GENERIC = [
    Case("generic/1 preface", lambda t: [PONG_AFTER], "pong"),
    Case("generic/2 PRIORITY, idle", lambda t: [priority()], "pong"),
    Case("generic/2 WINDOW_UPDATE, half-closed", lambda t: [window(0), ask(t), update(1, 1), "data"], "pong"),
    Case("generic/2 PRIORITY, half-closed", lambda t: [window(0), ask(t), priority(), update(1, 1), "data"], "pong"),
    Case("generic/2 RST_STREAM, half-closed", lambda t: [headers(t), reset()], "pong"),
    Case("generic/2 PRIORITY, closed", lambda t: [headers(t), "end", priority()], "pong"),
    Case("generic/3.1 DATA", lambda t: [post(t), data()], "answer"),
    Case("generic/3.1 several DATA", lambda t: [post(t), data(end=False), data()], "answer"),
    Case("generic/3.1 DATA with padding", lambda t: [post(t), data(b"\6test" + bytes(6), flags=PADDED)], "answer"),
    Case("generic/3.2 HEADERS", lambda t: [headers(t)], "answer"),
    Case("generic/3.2 HEADERS with padding",
         lambda t: [headers(t, flags=END_HEADERS | PADDED, before=b"\6", after=bytes(6))], "answer"),
    Case("generic/3.2 HEADERS with priority",
         lambda t: [headers(t, flags=END_HEADERS | WITH_PRIORITY, before=dependency())], "answer"),
    Case("generic/3.3 PRIORITY, weight 1", lambda t: [priority(weight=0), headers(t)], "answer"),
    Case("generic/3.3 PRIORITY, weight 256", lambda t: [priority(weight=255), headers(t)], "answer"),
    Case("generic/3.3 PRIORITY, a dependency", lambda t: [priority(3, 1), headers(t)], "answer"),
    Case("generic/3.3 PRIORITY, exclusive", lambda t: [priority(3, 1, exclusive=True), headers(t)], "answer"),
    Case("generic/3.3 PRIORITY, an idle stream, then a smaller one", lambda t: [priority(5), headers(t)], "answer"),
    Case("generic/3.4 RST_STREAM", lambda t: [post(t), reset()], "pong"),
    Case("generic/3.5 SETTINGS",
         lambda t: [settings((1, 4096), (2, 1), (3, 100), (4, 65535), (5, 16384), (6, 100))], "ack"),
    Case("generic/3.7 PING", lambda t: [PONG_AFTER], "pong"),
    Case("generic/3.8 GOAWAY", lambda t: [frame(GOAWAY, payload=bytes(8))], "close"),
    Case("generic/3.9 WINDOW_UPDATE, connection", lambda t: [update(0, 1), ask(t), "data"], "pong"),
    Case("generic/3.9 WINDOW_UPDATE, stream", lambda t: [window(0), ask(t), update(1, 1), "data"], "pong"),
    Case("generic/3.10 CONTINUATION", lambda t: [headers(t, flags=0), more_headers()], "answer"),
    Case("generic/3.10 several CONTINUATION",
         lambda t: [headers(t, flags=0), more_headers(end=False), more_headers()], "answer"),
    Case("generic/4 GET", lambda t: [headers(t)], "answer"),
    Case("generic/4 HEAD", lambda t: [headers(t, fields=fields_of(t, method="HEAD"))], "answer"),
    Case("generic/4 POST", lambda t: [post(t), data()], "answer"),
    Case("generic/4 POST with trailers",
         lambda t: [post(t, ("trailer", "x-test")), data(end=False), headers(t, fields=block([("x-test", "ok")]))],
         "answer"),
    Case("generic/5 indexed field", lambda t: [headers(t, after=b"\xba")], "answer"),
    *_hpack_forms(),
    Case("generic/5 table size update", lambda t: [headers(t, before=b"\x20")], "answer"),
    Case("generic/5 several table size updates", lambda t: [headers(t, before=b"\x20\x3f\xe1\x1f")], "answer"),
]  # fmt: skip

CONNECTIONS = [
    Case("3.5 an invalid preface", lambda t: [b"INVALID CONNECTION PREFACE\r\n\r\n"], "close", hello=False),
    Case("4.1 a frame of unknown type", lambda t: [UNKNOWN], "pong"),
    Case("4.1 undefined flags", lambda t: [frame(PING, payload=bytes(8), flags=0x16)], "pong"),
    Case("4.1 the reserved bit", lambda t: [frame(PING, 1 << 31, bytes(8), 0x16)], "pong"),
    Case("4.2 DATA of 2^14 bytes", lambda t: [post(t), data(b"x" * 16384)], "answer"),
    Case("4.2 DATA larger than the limit", lambda t: [post(t), data(b"x" * 16385)], stream_error(FRAME_SIZE)),
    Case("4.2 HEADERS larger than the limit",
         lambda t: [headers(t, after=block([(f"x-dummy{i}", "x" * 4000) for i in range(5)]))],
         connection_error(FRAME_SIZE)),
    Case("4.3 an invalid header block", lambda t: [headers(t, fields=b"\x40")], connection_error(COMPRESSION)),
    Case("4.3 PRIORITY within a header block", lambda t: [headers(t, flags=0), priority(), more_headers()],
         connection_error(PROTOCOL)),
    Case("4.3 HEADERS of another stream within a header block",
         lambda t: [headers(t, flags=0), headers(t, 3), more_headers()], connection_error(PROTOCOL)),
    Case("5.4.1 an invalid PING closes", lambda t: [frame(PING, 3, bytes(8))], "close"),
    Case("5.4.1 an invalid PING is told with GOAWAY", lambda t: [frame(PING, 3, bytes(8))],
         connection_error(PROTOCOL)),
    Case("5.5 an extension frame", lambda t: [UNKNOWN], "pong"),
    Case("5.5 an extension frame within a header block", lambda t: [headers(t, flags=0), UNKNOWN],
         connection_error(PROTOCOL)),
]  # fmt: skip

STREAMS = [
    Case("5.1 idle: DATA", lambda t: [data()], connection_error(PROTOCOL)),
    Case("5.1 idle: RST_STREAM", lambda t: [reset()], connection_error(PROTOCOL)),
    Case("5.1 idle: WINDOW_UPDATE", lambda t: [update(1, 100)], connection_error(PROTOCOL)),
    Case("5.1 idle: CONTINUATION", lambda t: [more_headers()], connection_error(PROTOCOL)),
    Case("5.1 half-closed: DATA", lambda t: [headers(t), data()], stream_error(CLOSED)),
    Case("5.1 half-closed: HEADERS", lambda t: [headers(t), headers(t)], stream_error(CLOSED)),
    Case("5.1 half-closed: CONTINUATION", lambda t: [headers(t), more_headers()], stream_error(CLOSED, PROTOCOL)),
    Case("5.1 closed by RST_STREAM: DATA", lambda t: [post(t), reset(), data()], stream_error(CLOSED)),
    Case("5.1 closed by RST_STREAM: HEADERS", lambda t: [post(t), reset(), headers(t)], stream_error(CLOSED)),
    Case("5.1 closed by RST_STREAM: CONTINUATION", lambda t: [post(t), reset(), more_headers()],
         stream_error(CLOSED, PROTOCOL)),
    Case("5.1 closed: DATA", lambda t: [headers(t), "end", data()], connection_error(CLOSED)),
    Case("5.1 closed: HEADERS", lambda t: [headers(t), "end", headers(t)], connection_error(CLOSED)),
    Case("5.1 closed: CONTINUATION", lambda t: [headers(t), "end", more_headers()],
         connection_error(CLOSED, PROTOCOL)),
    Case("5.1.1 an even stream", lambda t: [headers(t, 2)], connection_error(PROTOCOL)),
    Case("5.1.1 a stream smaller than one before", lambda t: [headers(t, 5), headers(t, 3)],
         connection_error(PROTOCOL)),
    Case("5.1.2 more streams than allowed",
         lambda t: [headers(t, stream, end=False) for stream in range(1, 2 * MAX_STREAMS + 2, 2)],
         stream_error(PROTOCOL, REFUSED)),
    Case("5.3.1 HEADERS that depend on themselves",
         lambda t: [headers(t, flags=END_HEADERS | WITH_PRIORITY, before=dependency(1))], stream_error(PROTOCOL)),
    Case("5.3.1 PRIORITY that depends on itself", lambda t: [priority(1, 1)], stream_error(PROTOCOL)),
]  # fmt: skip
MAX_STREAMS = 100

FRAMES = [
    Case("6.1 DATA of stream 0", lambda t: [data(stream=0)], connection_error(PROTOCOL)),
    Case("6.1 DATA, half-closed", lambda t: [headers(t), data()], stream_error(CLOSED)),
    Case("6.1 DATA with invalid padding",
         lambda t: [post(t, ("content-length", "4")), data(b"\6Test", flags=PADDED)], connection_error(PROTOCOL)),
    Case("6.2 HEADERS, then PRIORITY", lambda t: [headers(t, flags=0), priority(), more_headers()],
         connection_error(PROTOCOL)),
    Case("6.2 HEADERS, then those of another stream",
         lambda t: [headers(t, flags=0), headers(t, 3), more_headers()], connection_error(PROTOCOL)),
    Case("6.2 HEADERS of stream 0", lambda t: [headers(t, 0)], connection_error(PROTOCOL)),
    Case("6.2 HEADERS with invalid padding",
         lambda t: [headers(t, flags=END_HEADERS | PADDED, before=bytes([len(fields_of(t)) + 2]))],
         stream_error(PROTOCOL)),
    Case("6.3 PRIORITY of stream 0", lambda t: [priority(0)], connection_error(PROTOCOL)),
    Case("6.3 PRIORITY of 4 bytes", lambda t: [headers(t), frame(PRIORITY, 1, b"\x80\0\0\1")],
         stream_error(FRAME_SIZE)),
    Case("6.3 PRIORITY of an idle stream, then a smaller one", lambda t: [priority(3), headers(t)], "answer"),
    Case("6.4 RST_STREAM of stream 0", lambda t: [reset(0)], connection_error(PROTOCOL)),
    Case("6.4 RST_STREAM, idle", lambda t: [reset(1)], connection_error(PROTOCOL)),
    Case("6.4 RST_STREAM of 3 bytes", lambda t: [headers(t), frame(RST_STREAM, 1, bytes(3))],
         stream_error(FRAME_SIZE)),
    Case("6.5 SETTINGS ACK with a payload", lambda t: [frame(SETTINGS, payload=b"\0", flags=ACK)],
         connection_error(FRAME_SIZE)),
    Case("6.5 SETTINGS of stream 1", lambda t: [frame(SETTINGS, 1, b"\0\3\0\0\0\x64")], connection_error(PROTOCOL)),
    Case("6.5 SETTINGS of 8 bytes", lambda t: [frame(SETTINGS, payload=b"\0\3\0\0\0\x64\0\2")],
         connection_error(PROTOCOL, FRAME_SIZE)),
    Case("6.5.2 ENABLE_PUSH 2", lambda t: [settings((2, 2))], connection_error(PROTOCOL)),
    Case("6.5.2 INITIAL_WINDOW_SIZE 2^31", lambda t: [window(2**31)], connection_error(FLOW_CONTROL)),
    Case("6.5.2 MAX_FRAME_SIZE 16383", lambda t: [settings((5, 16383))], connection_error(PROTOCOL)),
    Case("6.5.2 MAX_FRAME_SIZE 2^24", lambda t: [settings((5, 2**24))], connection_error(PROTOCOL)),
    Case("6.5.2 an unknown setting", lambda t: [settings((0xFF, 1))], "pong"),
    Case("6.5.3 two values of INITIAL_WINDOW_SIZE", lambda t: [window(100, 1), "ack", ask(t)], "byte"),
    Case("6.5.3 SETTINGS are acknowledged", lambda t: [settings((2, 0))], "ack"),
    Case("6.7 PING", lambda t: [PONG_AFTER], "pong"),
    Case("6.7 PING ACK that nobody asked for", lambda t: [frame(PING, payload=b"invalid!", flags=ACK)], "pong"),
    Case("6.7 PING of stream 1", lambda t: [frame(PING, 1, bytes(8))], connection_error(PROTOCOL)),
    Case("6.7 PING of 6 bytes", lambda t: [frame(PING, payload=bytes(6))], connection_error(FRAME_SIZE)),
    Case("6.8 GOAWAY of stream 1", lambda t: [frame(GOAWAY, 1, bytes(8))], connection_error(PROTOCOL)),
    Case("6.9 WINDOW_UPDATE by 0", lambda t: [update(0, 0)], connection_error(PROTOCOL)),
    Case("6.9 WINDOW_UPDATE by 0, stream", lambda t: [post(t), update(1, 0)], stream_error(PROTOCOL)),
    Case("6.9 WINDOW_UPDATE of 3 bytes", lambda t: [frame(WINDOW_UPDATE, payload=b"\0\0\1")],
         connection_error(FRAME_SIZE)),
    Case("6.9.1 a window of one byte", lambda t: [window(1), "ack", ask(t)], "byte"),
    Case("6.9.1 a window over 2^31-1", lambda t: [update(0, MAX_WINDOW), update(0, MAX_WINDOW)],
         connection_error(FLOW_CONTROL)),
    Case("6.9.1 a stream's window over 2^31-1",
         lambda t: [post(t), update(1, MAX_WINDOW), update(1, MAX_WINDOW)], stream_error(FLOW_CONTROL)),
    Case("6.9.2 a window that is changed while a stream is open",
         lambda t: [window(0), "ack", ask(t), window(1), "ack"], "byte"),
    Case("6.9.2 a window that becomes negative",
         lambda t: [window(3), "ack", ask(t), "data", window(2), "ack", update(1, 2)], "byte"),
    Case("6.9.2 INITIAL_WINDOW_SIZE over 2^31-1", lambda t: [window(2**31)], connection_error(FLOW_CONTROL)),
    Case("6.10 several CONTINUATION",
         lambda t: [headers(t, flags=0), more_headers(end=False), more_headers()], "answer"),
    Case("6.10 CONTINUATION, then DATA",
         lambda t: [headers(t, flags=0, end=False), more_headers(end=False), data()], connection_error(PROTOCOL)),
    Case("6.10 CONTINUATION of stream 0", lambda t: [headers(t, flags=0), more_headers(0)],
         connection_error(PROTOCOL)),
    Case("6.10 CONTINUATION after HEADERS that have ended", lambda t: [headers(t), more_headers()],
         connection_error(PROTOCOL)),
    Case("6.10 CONTINUATION after one that has ended",
         lambda t: [headers(t, flags=0), more_headers(), more_headers()], connection_error(PROTOCOL)),
    Case("6.10 CONTINUATION after DATA",
         lambda t: [headers(t, flags=0, end=False), data(), more_headers(end=False)], connection_error(PROTOCOL)),
    Case("7 GOAWAY with an unknown code", lambda t: [frame(GOAWAY, payload=bytes(7) + b"\xff")], "close"),
    Case("7 RST_STREAM with an unknown code", lambda t: [post(t), reset(code=0xFF)], "pong"),
]  # fmt: skip

MALFORMED = stream_error(PROTOCOL)
MESSAGES = [
    Case("8.1 a second HEADERS without END_STREAM",
         lambda t: [post(t), data(end=False), headers(t, end=False, fields=block([("x-test", "ok")]))], MALFORMED),
    Case("8.1.2 a name in upper case", lambda t: [headers(t, after=literal("X-TEST", "ok"))], MALFORMED),
    Case("8.1.2.1 an unknown pseudo-field", lambda t: [headers(t, fields=block([(":test", "ok"), *t.fields]))],
         MALFORMED),
    Case("8.1.2.1 a pseudo-field of answers", lambda t: [headers(t, fields=block([(":status", "200"), *t.fields]))],
         MALFORMED),
    Case("8.1.2.1 a pseudo-field in trailers",
         lambda t: [post(t), data(end=False), headers(t, fields=block([(":method", "POST")]))], MALFORMED),
    Case("8.1.2.1 a pseudo-field after a field", lambda t: [headers(t, before=literal("x-test", "ok"))], MALFORMED),
    Case("8.1.2.2 a field of the connection", lambda t: [headers(t, after=literal("connection", "keep-alive"))],
         MALFORMED),
    Case("8.1.2.2 TE with another value than trailers",
         lambda t: [headers(t, fields=fields_of(t, ("te", "trailers, deflate"), without="te"))], MALFORMED),
    Case("8.1.2.3 an empty :path", lambda t: [headers(t, fields=fields_of(t, path=""))], MALFORMED),
    *(Case(f"8.1.2.3 no {name}", lambda t, name=name: [headers(t, fields=fields_of(t, without=name))],  # type: ignore[misc]
           MALFORMED) for name in (":method", ":scheme", ":path")),
    *(Case(f"8.1.2.3 {name} twice",
           lambda t, name=name: [headers(t, fields=block([(name, dict(t.fields)[name]), *t.fields]))],  # type: ignore[misc]
           MALFORMED) for name in (":method", ":scheme", ":path")),
    Case("8.1.2.6 another content-length", lambda t: [post(t, ("content-length", "1")), data()], MALFORMED),
    Case("8.1.2.6 another content-length, several DATA",
         lambda t: [post(t, ("content-length", "1")), data(end=False), data()], MALFORMED),
    Case("8.2 PUSH_PROMISE",
         lambda t: [frame(PUSH_PROMISE, 1, (3).to_bytes(4, "big") + fields_of(t), END_HEADERS)],
         connection_error(PROTOCOL)),
]  # fmt: skip

HPACK_ERROR = connection_error(COMPRESSION)
HPACK = [
    Case("hpack/2.3.3 an index beyond the tables", lambda t: [headers(t, after=b"\xc6")], HPACK_ERROR),
    Case("hpack/2.3.3 a name's index beyond the tables",
         lambda t: [headers(t, after=b"\x0f\x37" + string(b"empty"))], HPACK_ERROR),
    Case("hpack/4.2 a table size update at the end", lambda t: [headers(t, after=b"\x20")], HPACK_ERROR),
    *(Case(f"hpack/5.2 Huffman: {name}",
           lambda t, coded=coded: [  # type: ignore[misc]
               headers(t, after=b"\0" + string(b"x-test") + bytes([0x80 | len(coded)]) + coded)],
           HPACK_ERROR) for name, coded in bad_huffman().items()),
    Case("hpack/6.1 index 0", lambda t: [headers(t, after=b"\x80")], HPACK_ERROR),
    Case("hpack/6.3 a table size over the limit", lambda t: [headers(t, before=b"\x3f\xe1\xff\x03")], HPACK_ERROR),
]  # fmt: skip

CASES = [*GENERIC, *CONNECTIONS, *STREAMS, *FRAMES, *MESSAGES, *HPACK]
