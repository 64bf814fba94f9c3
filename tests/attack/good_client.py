# SPDX-License-Identifier: Apache-2.0
"""The good client beside an attack: stock grpcio in a process of its own, from a host of its own. It calls at fixed
times, and a call's latency counts from the time at which it was due: a server that stalls for a second makes all calls
of that second late, not one. Beside the server it calls an echo, a process that is not attacked: on a busy machine its
answers are late too. `python -m tests.attack.good_client HOST:PORT [CA]`; for each line `FROM TO` (monotonic
seconds) on its input it prints one line of JSON about the calls that were due between them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import health_pb2 as health
from tests.support.peer import PREDICT, good_request

GET_MODEL = "/fused_mlp.v1.Inference/GetModel"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
DEADLINE_S = 10.0
ECHO = "echo"
_ECHO_PROGRAM = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    with server.accept()[0] as connection:
        while data := connection.recv(1):
            connection.sendall(data)
"""


@dataclass(frozen=True)
class Sample:
    due: float
    latency_s: float
    error: str  # empty: answered


class Caller(threading.Thread):
    """Calls every `period_s`, in the order of the times at which the calls are due."""

    def __init__(self, name: str, period_s: float, call: Callable[[], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._period_s, self._call = period_s, call
        self._samples: list[Sample] = []
        self._progress = threading.Condition()

    def run(self) -> None:
        due = time.monotonic()
        while True:
            time.sleep(max(0.0, due - time.monotonic()))
            error = ""
            try:
                self._call()
            except grpc.RpcError as failure:
                error = f"{failure.code().name}: {failure.details()}"
            with self._progress:
                self._samples.append(Sample(due, time.monotonic() - due, error))
                self._progress.notify_all()
            due += self._period_s

    def samples(self, since: float, until: float) -> list[Sample]:
        """Those due in that time, when the last of them has been answered."""
        with self._progress:
            self._progress.wait_for(lambda: self._samples and self._samples[-1].due >= until)
            return [sample for sample in self._samples if since <= sample.due < until]


def channel(target: str, ca: str, **options: int) -> grpc.Channel:
    settings = [(name.replace("_", "."), value) for name, value in options.items()]
    settings += [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    if not ca:
        return grpc.insecure_channel(target, settings)
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes())
    return grpc.secure_channel(target, credentials, settings)


def start_echo() -> Callable[[], object]:
    """Ends by itself, with the connection."""
    process = subprocess.Popen([sys.executable, "-c", _ECHO_PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    connection = socket.create_connection(("127.0.0.1", int(process.stdout.readline())))

    def call() -> bytes:
        connection.sendall(b"x")
        return connection.recv(1)

    return call


def callers(target: str, ca: str) -> list[Caller]:
    predict = good_request()
    check = health.HealthCheckRequest().SerializeToString()
    get_model = fm.GetModelRequest(model="digits").SerializeToString()

    def on_its_own_connection(path: str, message: bytes) -> Callable[[], object]:
        call = channel(target, ca).unary_unary(path)
        return lambda: call(message, timeout=DEADLINE_S)

    def newcomer() -> object:
        with channel(target, ca) as fresh:
            return fresh.unary_unary(PREDICT)(predict, timeout=DEADLINE_S)

    return [
        Caller("Predict", 0.005, on_its_own_connection(PREDICT, predict)),
        Caller("Health/Check", 0.005, on_its_own_connection(HEALTH_CHECK, check)),
        Caller("GetModel", 0.05, on_its_own_connection(GET_MODEL, get_model)),
        Caller("newcomer", 0.25, newcomer),
        Caller(ECHO, 0.01, start_echo()),
    ]


def summary(samples: list[Sample]) -> dict[str, Any]:
    latencies = sorted(sample.latency_s for sample in samples)
    errors = [sample.error for sample in samples if sample.error]
    rank = (99 * len(latencies) + 99) // 100 - 1
    return {"calls": len(samples), "p99_s": latencies[rank] if latencies else 0.0, "errors": errors[:5]}


def main(target: str, ca: str = "") -> None:
    running = callers(target, ca)
    for caller in running:
        caller.start()
    for line in sys.stdin:
        since, until = map(float, line.split())
        report = {caller.name: summary(caller.samples(since, until)) for caller in running}
        print(json.dumps(report), flush=True)


class GoodClient:
    """That program, as a context of a test."""

    def __init__(self, target: str, ca: Path | None = None) -> None:
        command = [sys.executable, "-m", "tests.attack.good_client", target, *([str(ca)] if ca else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def report(self, since: float, until: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{since} {until}\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    main(*sys.argv[1:])
