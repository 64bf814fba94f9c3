# SPDX-License-Identifier: Apache-2.0
"""Both ports against the cases of h2spec. nghttpd, where it is installed, shows that the cases are right."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fused_mlp.service.fronts.selection import native_front_problem
from tests.conformance import h2spec_cases as spec
from tests.conformance.h2spec_cases import CASES, Case, Target
from tests.conformance.proxies import wait_for
from tests.support.peer import PREFACE
from tests.support.rest import rest_port
from tests.support.server import Server, free_port

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)


def target(*fields: tuple[str, str], body: bytes = b"") -> Target:
    return Target(((":scheme", "http"), (":authority", "localhost"), *fields), body)


GRPC = target((":method", "POST"), (":path", "/grpc.health.v1.Health/Check"), ("content-type", "application/grpc"),
              ("te", "trailers"), body=bytes(5))  # fmt: skip
REST = target((":method", "GET"), (":path", "/v2"))


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, tuple[int, Target]]]:
    limits = json.dumps({"max_concurrent_streams": spec.MAX_STREAMS})
    with Server(front="native", rest_port=0, limits=limits) as server:
        grpc = int(server.target.rpartition(":")[2])
        yield {"grpc": (grpc, GRPC), "rest": (rest_port(server), REST)}


@dataclass
class Wire:
    """One connection: sends bytes, and reads frames until there is something to say about them."""

    socket: socket.socket
    acks: int = 0
    pongs: int = 0
    data: list[int] = field(default_factory=list)  # lengths of DATA frames that are not empty
    errors: list[tuple[str, int]] = field(default_factory=list)
    heads: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    closed: bool = False
    received: bytes = b""
    settled: int = 0

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except ConnectionError:
            self.closed = True

    def read(self) -> None:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        self.closed = not data
        self.received += data
        while len(self.received) >= 9 and not self.received.startswith(b"HTTP/1.1"):
            length = int.from_bytes(self.received[:3], "big")
            if len(self.received) < 9 + length:
                break
            kind, flags = self.received[3], self.received[4]
            stream = int.from_bytes(self.received[5:9], "big")
            self.take(kind, flags, stream, self.received[9 : 9 + length])
            self.received = self.received[9 + length :]

    def take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == spec.SETTINGS and not flags:
            self.send(spec.frame(spec.SETTINGS, flags=spec.ACK))
        self.acks += kind == spec.SETTINGS and flags
        self.pongs += kind == spec.PING and flags
        if kind == spec.DATA and payload:
            self.data.append(len(payload))
        if kind == spec.HEADERS:
            self.heads.add(stream)
        if kind in (spec.DATA, spec.HEADERS) and flags & spec.END_STREAM:
            self.ended.add(stream)
        if kind == spec.RST_STREAM:
            self.errors.append(("stream", int.from_bytes(payload, "big")))
        if kind == spec.GOAWAY:
            self.errors.append(("connection", int.from_bytes(payload[4:8], "big")))

    def has(self, what: str) -> bool:
        """Since the last time that it was asked for: pings, acknowledgements and DATA come more than once."""
        if what == "end":
            return 1 in self.ended
        seen = {"ack": self.acks, "data": len(self.data)}[what]
        wanted = self.settled + 1 if what == "ack" else 1
        return seen >= wanted

    def wait(self, what: str) -> None:
        while not self.has(what):
            assert not self.closed, f"the connection was closed before: {what}"
            self.read()
        if what == "ack":
            self.settled = self.acks
        if what == "data":
            self.data.clear()

    def settle(self) -> None:
        """Two pings, one after the other: nghttp2 answers a ping before it sends resets that are due."""
        for _ in range(2):
            seen = self.pongs
            self.send(spec.PONG_AFTER)
            while self.pongs == seen and not self.closed and not self.fatal():
                self.read()

    def fatal(self) -> bool:
        return any(scope == "connection" and code for scope, code in self.errors)


def judge(wire: Wire, accepts: spec.Accepts) -> str | None:
    """What is wrong; None: nothing."""
    if accepts == "close":
        while not wire.closed:
            wire.read()
        return None
    if accepts in ("answer", "byte"):
        while not (wire.heads if accepts == "answer" else wire.data) and not wire.closed and not wire.errors:
            wire.read()
        good = 1 in wire.heads if accepts == "answer" else wire.data == [1]
        return None if good else f"expected {accepts}, got {wire}"
    if accepts == "ack":
        return wire.wait("ack")
    wire.settle()
    if accepts == "pong":
        return None if wire.pongs >= 2 and not wire.closed else f"expected an answer to a ping, got {wire}"
    scope, codes = accepts
    allowed = {("connection", code) for code in codes} | (
        {("stream", code) for code in codes} if scope == "stream" else set()
    )
    found = [error for error in wire.errors if error[1]]
    if found:
        return None if set(found) <= allowed else f"expected {allowed}, got {found}"
    return None if wire.closed else f"expected {allowed}, got no error"


def run(case: Case, port: int, target: Target) -> str | None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = Wire(connection)
        if case.hello:
            wire.send(PREFACE + spec.settings((4, 65535)))
            wire.wait("ack")
        for step in case.steps(target):
            if isinstance(step, bytes):
                wire.send(step)
            else:
                wire.wait(step)
        return judge(wire, case.accepts)


@pytest.mark.parametrize("port", ["grpc", "rest"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(ports: dict[str, tuple[int, Target]], port: str, case: Case) -> None:
    assert (problem := run(case, *ports[port])) is None, problem


def test_a_call_that_the_server_refused_early_may_still_be_sending(
    ports: dict[str, tuple[int, Target]],
) -> None:
    """The frames were on their way: they end nothing, and the next call is answered."""
    for port, target in ports.values():
        unknown = spec.headers(
            target, end=False, fields=spec.fields_of(target, path="/v2/models/%zz/infer", method="POST")
        )
        late = Case("", lambda t, unknown=unknown: [  # type: ignore[misc]
            unknown, "end", spec.data(end=False), spec.data(), spec.headers(t, 3)], "pong")  # fmt: skip
        assert run(late, port, target) is None


@pytest.mark.parametrize(
    ("depends", "accepts"),
    [(3, "pong"), (1, spec.connection_error(spec.PROTOCOL))],
    ids=["another", "itself"],
)
def test_a_priority_frame_that_comes_byte_by_byte(
    ports: dict[str, tuple[int, Target]], depends: int, accepts: spec.Accepts
) -> None:
    def steps(t: Target) -> list[bytes]:
        frames = spec.priority(1, depends) + spec.headers(t)
        return [frames[i : i + 1] for i in range(len(frames))]

    for port, target in ports.values():
        assert run(Case("", steps, accepts), port, target) is None


def test_the_cases_are_those_that_nghttp2_passes(tmp_path: Path) -> None:
    """All but one: nghttpd ignores a stream smaller than one before, as older versions of the RFC allowed."""
    if (nghttpd := shutil.which("nghttpd")) is None:
        pytest.skip("nghttpd is not installed (Debian: nghttp2-server)")
    (tmp_path / "index.html").write_text("a page")
    port = free_port()
    process = subprocess.Popen(
        [nghttpd, "--no-tls", "-d", str(tmp_path), str(port)], stdout=subprocess.DEVNULL
    )
    try:
        wait_for(port, process)
        page = target((":method", "GET"), (":path", "/"))
        failed = [case.name for case in CASES if run(case, port, page) is not None]
    finally:
        process.terminate()
        process.wait(10)
    assert failed == ["5.1.1 a stream smaller than one before"]
