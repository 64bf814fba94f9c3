# SPDX-License-Identifier: Apache-2.0
"""A caller at the level of HTTP/2, which mixes good, bad, cancelled and expired requests to the small model over both
APIs, streams, calls that Python answers, and lost connections."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from hyperframe.frame import RstStreamFrame

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from tests.conformance.soak.books import LOOSE, Ledger
from tests.support.peer import PREDICT, PREDICT_STREAM, Peer, framed, good_request

INFER = "/inference.GRPCInferenceService/ModelInfer"
INFER_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
HEALTH = "/grpc.health.v1.Health/Check"
CODES = {0: "OK", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND", 12: "UNIMPLEMENTED"}
# Wire type 7 does not exist. Random bytes alone are now and then a message: one unknown field that spans them all.
NO_MESSAGE = b"\x0f"


def infer_request(rows: int = 1, **fields: object) -> bytes:
    tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[rows, 64])
    default = {"model_name": "digits", "inputs": [tensor], "raw_input_contents": [bytes(256 * rows)]}
    return bytes(oip.ModelInferRequest(**{**default, **fields}).SerializeToString())


def rows_request(rows: int, **fields: object) -> bytes:
    return good_request(input=fm.Tensor(shape=[rows, 64], data=bytes(256 * rows)), **fields)


class Caller(threading.Thread):
    """One connection at a time."""

    def __init__(self, port: int, until: float, seed: int) -> None:
        super().__init__()
        self._port, self._until = port, until
        self._random = random.Random(seed)
        self.ledger = Ledger()
        self._stream = -1
        self._peer = Peer(port)
        self._actions: list[tuple[int, Callable[[], None]]] = [
            (20, self._good),
            (5, self._unfused),
            (6, self._infer),
            (4, self._large),
            (4, self._bad),
            (4, self._expired),
            (6, self._cancelled),
            (2, self._half_sent),
            (4, self._predict_stream),
            (3, self._infer_stream),
            (2, self._python),
            (1, self._unknown),
            (1, self._lost_connection),
        ]

    def run(self) -> None:
        try:
            weights = [weight for weight, _ in self._actions]
            while time.monotonic() < self._until and not self.ledger.problems:
                self._random.choices(self._actions, weights)[0][1]()
                if self._stream > 20_000:
                    self._connect()
        except Exception as error:
            self.ledger.problems.append(f"{type(error).__name__}: {error}")
        finally:
            self._peer.__exit__()

    def _connect(self) -> None:
        self._peer.ping()  # all that was sent has been read
        self._peer.__exit__()
        self._peer = Peer(self._port)
        self._stream = -1

    def _next(self) -> int:
        self._stream += 2
        self.ledger.calls += 1
        return self._stream

    def _expect(
        self, message: bytes, code: int, path: str = PREDICT, counted: bool = True, **options: object
    ) -> None:
        stream = self._next()
        answer = self._peer.call(stream, message, path, **options)
        if counted:
            self.ledger.sent[CODES[code]] += 1
        if answer.status != code:
            self.ledger.problems.append(f"{path}: expected {CODES[code]}, got {answer}")
        del self._peer.answers[stream]

    def _good(self) -> None:
        self._expect(good_request(request_id="x"), 0)

    def _unfused(self) -> None:
        self._expect(good_request(variant=fm.UNFUSED), 0)

    def _infer(self) -> None:
        self._expect(infer_request(self._random.randint(1, 8)), 0, INFER)

    def _large(self) -> None:
        self._expect(rows_request(self._random.randint(20, 60)), 0)

    def _bad(self) -> None:
        choice = self._random.randrange(5)
        if choice == 0:
            self._expect(good_request(model="nonesuch"), 5)
        elif choice == 1:
            self._expect(good_request(input=fm.Tensor(shape=[1, 63], data=bytes(252))), 3)
        elif choice == 2:
            self._expect(NO_MESSAGE + self._random.randbytes(50), 3)
        elif choice == 3:
            self._expect(infer_request(model_version="x"), 3, INFER)
        else:
            self._expect(infer_request(model_name="nonesuch"), 5, INFER)

    def _expired(self) -> None:
        self._expect(good_request(), 4, extra=[("grpc-timeout", "1n")])

    def _cancelled(self) -> None:
        variant = self._random.choice((fm.FUSED, fm.UNFUSED))
        for _ in range(self._random.randint(1, 4)):
            stream = self._next()
            self._peer.send(
                self._peer.headers(stream),
                self._peer.data(stream, framed(good_request(variant=variant)), end=True),
                RstStreamFrame(stream, 8),
            )
            self.ledger.sent[LOOSE] += 1
        self._peer.ping()

    def _half_sent(self) -> None:
        """Taken back before it was a request: not counted."""
        stream = self._next()
        message = framed(good_request())
        self._peer.send(
            self._peer.headers(stream),
            self._peer.data(stream, message[: len(message) // 2]),
            RstStreamFrame(stream, 8),
        )

    def _stream_of(self, path: str, good: bytes, bad: bytes) -> None:
        stream, count = self._next(), self._random.randint(0, 20)
        self._peer.begin(stream, path)
        for _ in range(count):
            self._peer.send(self._peer.data(stream, framed(good)))
        self._peer.send(self._peer.data(stream, framed(bad), end=True))
        answer = self._peer.wait_end(stream)
        self.ledger.sent["OK"] += count
        self.ledger.sent["NOT_FOUND"] += 1
        if (answer.status, len(answer.messages())) != (0, count + 1):
            self.ledger.problems.append(
                f"{path}: expected {count + 1} answers, got {len(answer.messages())}, {answer.status}"
            )
        del self._peer.answers[stream]

    def _predict_stream(self) -> None:
        self._stream_of(PREDICT_STREAM, good_request(), good_request(model="nonesuch"))

    def _infer_stream(self) -> None:
        self._stream_of(INFER_STREAM, infer_request(), infer_request(model_name="nonesuch"))

    def _python(self) -> None:
        self._expect(b"", 0, HEALTH, counted=False)

    def _unknown(self) -> None:
        self._expect(b"", 12, "/nonesuch.Service/Method", counted=False)

    def _lost_connection(self) -> None:
        """Everything has arrived (the ping says so) when the connection goes, answers unread."""
        for _ in range(self._random.randint(1, 10)):
            stream = self._next()
            self._peer.send(
                self._peer.headers(stream), self._peer.data(stream, framed(rows_request(30)), end=True)
            )
            self.ledger.sent[LOOSE] += 1
        self._connect()
