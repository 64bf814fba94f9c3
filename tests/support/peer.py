# SPDX-License-Identifier: Apache-2.0
"""An HTTP/2 peer that does exactly what a test tells it, right or wrong: frames by hyperframe, headers by hpack,
no state machine in between that would refuse to misbehave."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import hpack
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from fused_mlp.protos import fused_mlp_pb2 as fm

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PREDICT = "/fused_mlp.v1.Inference/Predict"
PREDICT_STREAM = "/fused_mlp.v1.Inference/PredictStream"
TIMEOUT_S = 20.0
MAX_WINDOW = 2**31 - 1


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(message)) + message


def good_request(**fields: Any) -> bytes:
    tensor = fm.Tensor(shape=[1, 64], data=bytes(256))
    return fm.PredictRequest(**{"model": "digits", "input": tensor, **fields}).SerializeToString()


@dataclass
class Answer:
    """What came for one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        """The gRPC code, wherever it was sent."""
        return int(self.trailers.get("grpc-status", self.headers.get("grpc-status", -1)))

    @property
    def text(self) -> str:
        return self.trailers.get("grpc-message", self.headers.get("grpc-message", ""))

    def messages(self) -> list[bytes]:
        parts, rest = [], self.body
        while rest:
            size = struct.unpack(">I", rest[1:5])[0]
            parts.append(rest[5 : 5 + size])
            rest = rest[5 + size :]
        return parts


class Peer:
    """Connected when constructed; sends preface and SETTINGS unless told otherwise."""

    def __init__(
        self,
        port: int,
        *,
        hello: bool = True,
        tls: ssl.SSLContext | None = None,
        receive_buffer: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        """`host`: the address it connects from; all of 127.0.0.0/8 is this machine."""
        self._socket = socket.socket()
        self._socket.bind((host, 0))
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        # As every gRPC client does. Without it each small write after another waits 40 ms for a delayed ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(("127.0.0.1", port))
            if tls:
                self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
            if hello:
                self.write(PREFACE + SettingsFrame(0).serialize())
        except OSError:
            self._socket.close()
            raise
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._received = b""
        self.settings: dict[int, int] = {}
        self.answers: dict[int, Answer] = {}
        self.goaways: list[GoAwayFrame] = []
        self.pings_answered = 0
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    # What it says

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(self, *frames: Frame) -> None:
        self.write(b"".join(frame.serialize() for frame in frames))

    def headers(
        self,
        stream: int,
        path: str = PREDICT,
        *,
        end: bool = False,
        without: Iterable[str] = (),
        extra: Iterable[tuple[str, str]] = (),
    ) -> HeadersFrame:
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        extra = list(extra)
        skipped = {*without, *(name for name, _ in extra)}
        kept = [(name, value) for name, value in fields.items() if name not in skipped]
        pseudo = [item for item in extra if item[0].startswith(":")]
        rest = [item for item in extra if not item[0].startswith(":")]
        frame = HeadersFrame(stream, self._encoder.encode([*pseudo, *kept, *rest]))
        frame.flags.add("END_HEADERS")
        if end:
            frame.flags.add("END_STREAM")
        return frame

    @staticmethod
    def data(stream: int, data: bytes, *, end: bool = False) -> DataFrame:
        frame = DataFrame(stream, data)
        if end:
            frame.flags.add("END_STREAM")
        return frame

    def begin(self, stream: int, path: str = PREDICT, **options: Any) -> None:
        self.send(self.headers(stream, path, **options))

    def call(self, stream: int, message: bytes, path: str = PREDICT, **options: Any) -> Answer:
        """One unary call from start to end."""
        self.send(self.headers(stream, path, **options), self.data(stream, framed(message), end=True))
        return self.wait_end(stream)

    # What it hears

    def set_timeout(self, seconds: float) -> None:
        """How long a wait may stay without a byte from the server before it raises TimeoutError."""
        self._socket.settimeout(seconds)

    def wait(self, condition: Callable[[], Any]) -> None:
        """Read until the condition holds; fails when the connection ends or falls silent before."""
        while not condition():
            assert self._read_some(), "the connection was closed first"

    def wait_end(self, stream: int) -> Answer:
        answer = self.answers.setdefault(stream, Answer())
        self.wait(lambda: answer.ended or answer.reset is not None)
        return answer

    def wait_closed(self) -> int | None:
        """Until the server has closed; the code of its last GOAWAY."""
        try:
            while self._read_some():
                pass
        except ConnectionError:
            pass
        return self.goaways[-1].error_code if self.goaways else None

    def ping(self) -> None:
        """There and back: everything sent before has been dealt with."""
        seen = self.pings_answered
        self.send(PingFrame(0, b"conforms"))
        self.wait(lambda: self.pings_answered > seen)

    def _read_some(self) -> bool:
        data = self._socket.recv(1 << 16)
        if not data:
            self.closed = True
            return False
        self._received += data
        while len(self._received) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(self._received[:9]))
            if len(self._received) < 9 + length:
                break
            frame.parse_body(memoryview(self._received[9 : 9 + length]))
            self._received = self._received[9 + length :]
            self._handle(frame)
        return True

    def _handle(self, frame: Frame) -> None:
        if isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
            self.settings.update(frame.settings)
            self.write(SettingsFrame(0, flags=["ACK"]).serialize())
        elif isinstance(frame, PingFrame):
            if "ACK" in frame.flags:
                self.pings_answered += 1
            else:
                self.on_ping(frame)
        elif isinstance(frame, GoAwayFrame):
            self.goaways.append(frame)
        elif frame.stream_id:
            self._handle_stream(frame, self.answers.setdefault(frame.stream_id, Answer()))

    def on_ping(self, frame: PingFrame) -> None:
        self.write(PingFrame(0, frame.opaque_data, flags=["ACK"]).serialize())

    def _handle_stream(self, frame: Frame, answer: Answer) -> None:
        if isinstance(frame, HeadersFrame):
            fields = dict(self._decoder.decode(frame.data))
            if answer.headers:
                answer.trailers = fields
            else:
                answer.headers = fields
        elif isinstance(frame, DataFrame):
            answer.body += frame.data
            if frame.data:
                self.on_data(frame)
        elif isinstance(frame, RstStreamFrame):
            answer.reset = frame.error_code
        if "END_STREAM" in frame.flags:
            answer.ended = True

    def on_data(self, frame: DataFrame) -> None:
        self.send(*(WindowUpdateFrame(stream, len(frame.data)) for stream in (0, frame.stream_id)))
