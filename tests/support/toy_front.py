# SPDX-License-Identifier: Apache-2.0
"""The native front alone, with a model of a few lines behind it: starts in no time, with whatever limits a test
wants. FUSED_MLP_FRONT_SERVER names a program to take instead: the stand-in server (service/csrc/front/tests), built
with a sanitizer."""

from __future__ import annotations

import os
import select
import signal
import threading
from typing import Any, Self

import numpy as np

from fused_mlp.service import _engine, _front
from fused_mlp.service.fronts.ports import bind, port_of
from tests.support.server import Server

STAND_IN = os.environ.get("FUSED_MLP_FRONT_SERVER", "")
INPUTS, OUTPUTS = 64, 10
POISON = 666.0
PYTHON_RPCS = [
    ("/grpc.health.v1.Health/Check", False),
    ("/grpc.health.v1.Health/Watch", False),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", True),
]


def expected(x: np.ndarray) -> np.ndarray:
    """What the toy model answers: output j is the sum of the inputs whose index is j modulo 10."""
    y = np.zeros((len(x), OUTPUTS), np.float32)
    for index in range(INPUTS):
        y[:, index % OUTPUTS] += x[:, index]
    return y


def run_toy(x: np.ndarray, y: np.ndarray) -> str:
    if (x[:, 0] == POISON).any():
        raise RuntimeError("a poisoned row")
    y[:] = expected(x)
    return "toy"


class ToyFront:
    """`with ToyFront(max_pings_per_s=5) as front:` then a peer on front.port."""

    def __init__(self, *, tls: Any = None, queue_rows: int = 8192, **limits: float) -> None:
        if STAND_IN:
            self._impl: Any = _Process(tls, queue_rows, limits)
        else:
            self._impl = _InProcess(tls, queue_rows, limits)
        self.port: int = self._impl.port
        self.target = f"127.0.0.1:{self.port}"

    def drain(self) -> None:
        """What SIGTERM does: no new calls, GOAWAY, the open ones go on."""
        self._impl.drain()

    def memory_bytes(self) -> int:
        return self._impl.memory_bytes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._impl.close()


class _InProcess:
    def __init__(self, tls: Any, queue_rows: int, limits: dict[str, float]) -> None:
        self._engine = _engine.Engine(workers=1)
        lanes = {
            variant: self._engine.add_lane(
                kernel=run_toy, in_features=INPUTS, out_features=OUTPUTS, name=variant, queue_rows=queue_rows
            )
            for variant in ("fused", "unfused")
        }
        router = _engine.Router()
        entry = _engine.RouteEntry(
            model="digits", version=1, in_features=INPUTS, out_features=OUTPUTS, allow_override=True, **lanes
        )
        router.publish([entry])
        self._limits = _front.Limits()
        for name, value in limits.items():
            setattr(self._limits, name, value)
        files = {"certificate": tls.certificate, "key": tls.key, "client_ca": tls.client_ca} if tls else {}
        listener = bind("127.0.0.1", 0)
        self.port = port_of(listener)
        self._server = _front.FrontServer(
            listener=listener.detach(),
            engine=self._engine,
            router=router,
            loops=2,
            limits=self._limits,
            rpcs=PYTHON_RPCS,
            **{name: str(path or "") for name, path in files.items()},
        )
        self._server.start()
        self._server.listen()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        """Python's part, as the stand-in plays it: SERVING for unary calls and watches, an echo for streams."""
        kinds = _front.CallEventKind
        while not self._ended.is_set():
            select.select([self._server.fileno()], [], [], 0.05)
            for event in self._server.drain():
                if event.kind is kinds.start and not event.path.endswith("ServerReflectionInfo"):
                    self._server.send(event.call, b"\x08\x01")
                    if not event.path.endswith("Watch"):
                        self._server.finish(event.call, 0)
                elif event.kind is kinds.message:
                    self._server.send(event.call, event.body)
                    self._server.message_done(event.call)
                elif event.kind is kinds.half_close:
                    self._server.finish(event.call, 0)

    def drain(self) -> None:
        self._server.begin_drain()

    def memory_bytes(self) -> int:
        return resident_bytes(os.getpid())

    def close(self) -> None:
        self._server.stop()
        self._engine.stop()
        self._ended.set()
        self._thread.join()


class _Process:
    def __init__(self, tls: Any, queue_rows: int, limits: dict[str, float]) -> None:
        settings: dict[str, Any] = {"queue_rows": queue_rows, **limits}
        if tls:
            settings |= {"tls_certificate": tls.certificate, "tls_key": tls.key}
            settings |= {"tls_client_ca": tls.client_ca} if tls.client_ca else {}
        self._server = Server(command=[STAND_IN], **settings)
        self.port = int(self._server.target.rpartition(":")[2])

    def drain(self) -> None:
        self._server.signal(signal.SIGTERM)

    def memory_bytes(self) -> int:
        return resident_bytes(self._server.process.pid)

    def close(self) -> None:
        """A sanitizer's finding ends the program with another code than 0."""
        log = self._server.stop()
        assert self._server.process.returncode == 0, log


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
