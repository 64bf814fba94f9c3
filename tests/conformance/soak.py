"""A minute of everything at once: good, bad, cancelled and expired requests over both APIs, streams, hand-overs to
Python and lost connections; then the books: every request sent was counted by the server exactly once, under the
code it must have, and memory is where it was. `python -m tests.conformance.soak --seconds 60`."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

from hyperframe.frame import RstStreamFrame

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from tests.conformance.peer import PREDICT, PREDICT_STREAM, Peer, framed, good_request
from tests.conformance.toy_front import resident_bytes
from tests.support import sanitized
from tests.support.server import Server

INFER = "/inference.GRPCInferenceService/ModelInfer"
INFER_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
HEALTH = "/grpc.health.v1.Health/Check"
CODES = {
    0: "OK",
    1: "CANCELLED",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    12: "UNIMPLEMENTED",
}
# Wire type 7 does not exist. Random bytes alone are now and then a message: one unknown field that spans them all.
NO_MESSAGE = b"\x0f"
WARM_UP_S = 8
# The allocator and Python's own caches settle a little after the warm-up; a leak of 100 bytes per request would
# show as ten times this.
MOST_GROWTH_BYTES = 24 << 20


def infer_request(rows: int = 1, **fields: object) -> bytes:
    tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[rows, 64])
    default = {"model_name": "digits", "inputs": [tensor], "raw_input_contents": [bytes(256 * rows)]}
    return bytes(oip.ModelInferRequest(**{**default, **fields}).SerializeToString())


def rows_request(rows: int, **fields: object) -> bytes:
    return good_request(input=fm.Tensor(shape=[rows, 64], data=bytes(256 * rows)), **fields)


class Caller(threading.Thread):
    """One connection at a time, and a ledger: `sent` by the code the server must count it under. "answered or
    cancelled" is for requests that were taken back on their way: either is right."""

    def __init__(self, port: int, until: float, seed: int) -> None:
        super().__init__()
        self._port, self._until = port, until
        self._random = random.Random(seed)
        self.sent: Counter[str] = Counter()
        self.problems: list[str] = []
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
            while time.monotonic() < self._until and not self.problems:
                self._random.choices(self._actions, weights)[0][1]()
                if self._stream > 20_000:
                    self._connect()
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")
        finally:
            self._peer.__exit__()

    def _connect(self) -> None:
        self._peer.ping()  # all that was sent has been read
        self._peer.__exit__()
        self._peer = Peer(self._port)
        self._stream = -1

    def _next(self) -> int:
        self._stream += 2
        return self._stream

    def _expect(
        self, message: bytes, code: int, path: str = PREDICT, counted: bool = True, **options: object
    ) -> None:
        stream = self._next()
        answer = self._peer.call(stream, message, path, **options)
        if counted:
            self.sent[CODES[code]] += 1
        if answer.status != code:
            self.problems.append(f"{path}: expected {CODES[code]}, got {answer}")
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
            self.sent["answered or cancelled"] += 1
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
        self.sent["OK"] += count
        self.sent["NOT_FOUND"] += 1
        if (answer.status, len(answer.messages())) != (0, count + 1):
            self.problems.append(
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
            self.sent["answered or cancelled"] += 1
        self._connect()


def counted_by(server: Server) -> Counter[str]:
    return Counter(
        {code: int(server.metric("fused_mlp_requests_total", code=code)) for code in CODES.values()}
    )


def check_books(sent: Counter[str], counted: Counter[str]) -> list[str]:
    loose = sent["answered or cancelled"]
    problems = [
        f"{code}: sent {sent[code]}, counted {counted[code]}"
        for code in ("INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND")
        if sent[code] != counted[code]
    ]
    if sent["OK"] + loose != counted["OK"] + counted["CANCELLED"]:
        problems.append(
            f"OK and CANCELLED: sent {sent['OK']} + {loose}, counted {counted['OK']} + {counted['CANCELLED']}"
        )
    if not sent["OK"] <= counted["OK"]:
        problems.append(f"OK: {sent['OK']} were answered, {counted['OK']} counted")
    return problems


def soak(seconds: float, callers: int) -> int:
    with Server(
        front="native", allow_override=1, limits='{"max_resets_per_s": 100000, "max_pings_per_s": 100000}'
    ) as server:
        port = int(server.target.rpartition(":")[2])
        started = time.monotonic()
        threads = [Caller(port, started + seconds, seed) for seed in range(callers)]
        for thread in threads:
            thread.start()
        threads[0].join(min(WARM_UP_S, seconds / 2))
        before = resident_bytes(server.process.pid)
        for thread in threads:
            thread.join()
        with Peer(port) as last:
            last.ping()
        after = resident_bytes(server.process.pid)
        sent: Counter[str] = sum((thread.sent for thread in threads), Counter())
        deadline = time.monotonic() + 10
        while (books := check_books(sent, counted_by(server))) and time.monotonic() < deadline:
            time.sleep(0.1)  # connections that were just closed are being cleaned up
        problems = [problem for thread in threads for problem in thread.problems] + books
        # A sanitizer keeps what was freed.
        if after - before > MOST_GROWTH_BYTES and not sanitized.BUILD:
            problems.append(f"memory: {before >> 20} MiB after the warm-up, {after >> 20} MiB at the end")
        counted = counted_by(server)
    print(f"sent {dict(sent)}")
    print(f"counted {dict(counted)}")
    print(f"memory {before / 2**20:.1f} MiB after the warm-up, {after / 2**20:.1f} MiB at the end")
    for problem in problems:
        print("PROBLEM", problem)
    print(
        "FAILED"
        if problems
        else f"ok: {sum(sent.values())} requests in {seconds:g} s, every one accounted for"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--callers", type=int, default=8)
    options = parser.parse_args()
    raise SystemExit(soak(options.seconds, options.callers))
