# SPDX-License-Identifier: Apache-2.0
"""One call that cannot be handled is answered with an error, and the calls beside it never notice."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fused_mlp.service import _front
from fused_mlp.service.errors import Code, InvalidInput
from fused_mlp.service.fronts.native import NativeFront
from fused_mlp.service.fronts.ports import bind, port_of
from fused_mlp.service.fronts.rpc import Call, Rpc
from fused_mlp.service.fronts.selection import native_front_problem
from fused_mlp.service.settings.settings import Settings
from tests.support.peer import Answer, Peer
from tests.support.rest import RestClient, rest_port
from tests.support.server import Server

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)

NOT_UTF8 = [
    b"/v2/models/\xff",
    b"/v2/models/digits/ready?\xc3\x28",
    b"/\xed\xa0\x80",
    b"/v2/models/\xff/infer",
]
PATH = "/test.Service/Method"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(front="native", rest_port=0) as running:
        yield running


def get(peer: Peer, stream: int, path: bytes | str) -> None:
    peer.begin(stream, extra=[(":method", "GET"), (":path", path)], end=True)


def test_paths_that_are_not_utf8_take_no_other_call_with_them(server: Server) -> None:
    """Python drains 16 events in a turn: the good calls are spread over as many turns as the bad ones."""
    with Peer(rest_port(server)) as bad, Peer(rest_port(server)) as good:
        for stream in range(1, 81, 2):
            get(bad, stream, NOT_UTF8[stream // 2 % len(NOT_UTF8)])
            get(good, stream, "/v2/health/ready")
        for stream in range(1, 81, 2):
            assert good.wait_end(stream).headers[":status"] == "200"
            refused = bad.wait_end(stream)
            assert refused.headers[":status"] == "400"
            assert json.loads(refused.body)["error"].startswith("path: expected UTF-8")
    assert "Traceback" not in server.log()


def test_a_path_that_is_not_utf8_over_http1(server: Server) -> None:
    with Peer(rest_port(server), hello=False) as peer:
        peer.write(b"GET /v2/models/\xff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert peer._socket.recv(1 << 16).startswith(b"HTTP/1.1 400 ")


def test_a_method_of_grpc_that_is_not_utf8_is_unknown(server: Server) -> None:
    with Peer(int(server.target.rpartition(":")[2])) as peer:
        for stream, path in ((1, b"/fused_mlp.v1.Inference/\xff"), (3, b"/" + "é".encode() * 200)):
            answer = peer.call(stream, b"", extra=[(":path", path)])
            assert answer.status == Code.UNIMPLEMENTED
            assert answer.text == "path: expected UTF-8" if b"\xff" in path else answer.text


def test_metadata_of_any_bytes_reaches_the_handlers(server: Server) -> None:
    with Peer(rest_port(server)) as peer:
        peer.begin(
            1, extra=[(":method", "GET"), (":path", "/v2/health/live"), ("x-any", b"\xff\xfe")], end=True
        )
        assert peer.wait_end(1).headers[":status"] == "200"


@pytest.mark.parametrize("body", [b'{"parameters": {"\\ud800": 1}}', b'{"parameters": {"x": "\\udfff"}}'])
def test_text_that_is_half_a_character_is_refused(server: Server, body: bytes) -> None:
    client = RestClient(rest_port(server))
    answer = client.ask("POST", "/v2/repository/models/digits/load", body)
    client.close()
    assert answer.status == 400
    assert "expected Unicode" in answer.error


# ---- The hand-off alone ----


def rpc(handle: Callable[[Any, Call], Awaitable[bytes]]) -> Rpc:
    return Rpc(PATH, "unary_unary", decode=bytes, encode=bytes, handle=handle)


def answer_to(handle: Callable[[Any, Call], Awaitable[bytes]]) -> Answer:
    async def run() -> Answer:
        listener = bind("127.0.0.1", 0)
        port = port_of(listener)
        front = NativeFront(Settings(), [rpc(handle)], 1 << 20, listener)
        await front.start()
        await front.listen()

        def call() -> Answer:
            with Peer(port) as peer:
                peer.set_timeout(5)
                return peer.call(1, b"", PATH)

        try:
            return await asyncio.to_thread(call)
        finally:
            await front.stop(0)

    return asyncio.run(run())


def test_a_handler_whose_own_work_was_cancelled_is_answered() -> None:
    async def handle(_: bytes, call: Call) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    assert answer_to(handle).status == Code.CANCELLED


def test_an_error_whose_text_cannot_be_encoded_is_answered() -> None:
    async def handle(_: bytes, call: Call) -> bytes:
        raise InvalidInput("expected a name, got \ud800")

    answer = answer_to(handle)
    assert (answer.status, answer.text) == (Code.INVALID_ARGUMENT, "expected a name, got ?")


def test_trailers_that_cannot_be_sent_are_an_internal_error() -> None:
    async def handle(_: bytes, call: Call) -> bytes:
        call.trailers.append(("x-name", "\ud800"))
        return b""

    answer = answer_to(handle)
    assert answer.status == Code.INTERNAL
    assert answer.text.startswith("internal error; request id ")


class ScriptedFront:
    """In the place of the compiled server: drains the events that a test gives it."""

    def __init__(self, **_: object) -> None:
        self.port = 1
        self.events: list[Any] = []
        self.finished: dict[int, tuple[int, str]] = {}
        self._fd = os.eventfd(1)

    def fileno(self) -> int:
        return self._fd

    def start(self) -> None: ...

    def drain(self, most: int) -> list[Any]:
        os.eventfd_read(self._fd)
        return self.events

    def send(self, call: int, message: bytes) -> None: ...

    def finish(self, call: int, code: int, text: str = "", trailers: object = ()) -> None:
        self.finished[call] = code, text


class BrokenEvent:
    kind = _front.CallEventKind.start
    call = 2

    @property
    def path(self) -> str:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


def start_event(call: int, path: str) -> SimpleNamespace:
    fields = {"metadata": [], "certificate_names": [], "deadline_ns": 0, "body": b"", "peer_address": ""}
    return SimpleNamespace(kind=_front.CallEventKind.start, call=call, path=path, **fields)


def test_an_event_that_cannot_be_handled_leaves_the_rest_of_its_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(_: bytes, call: Call) -> bytes:
        return b""

    async def run() -> dict[int, tuple[int, str]]:
        monkeypatch.setattr(_front, "FrontServer", ScriptedFront)
        front = NativeFront(Settings(), [rpc(handle)], 1 << 20, socket.socket())
        server = front._server
        assert isinstance(server, ScriptedFront)
        events = [
            start_event(1, PATH),
            BrokenEvent(),
            start_event(3, "/unknown.Service/X"),
            start_event(4, PATH),
        ]
        server.events = [*events, SimpleNamespace(kind=None, call=0, path="")]
        await front.start()
        async with asyncio.timeout(5):
            while len(server.finished) < 4:
                await asyncio.sleep(0)
        asyncio.get_running_loop().remove_reader(server.fileno())
        os.close(server.fileno())
        return server.finished

    with caplog.at_level(logging.ERROR):
        finished = asyncio.run(run())
    assert {call: code for call, (code, _) in finished.items()} == {
        1: 0,
        2: Code.INTERNAL,
        3: Code.INTERNAL,
        4: 0,
    }
    assert finished[2][1].startswith("internal error; request id ")
    assert finished[2][1].rpartition(" ")[2] in caplog.text
