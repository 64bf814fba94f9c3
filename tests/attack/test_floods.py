# SPDX-License-Identifier: Apache-2.0
"""Frames that are cheap to send. A flood ends its connection with a reason; what stock clients send is no flood."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hyperframe.frame import (
    DataFrame,
    Frame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.attack.attack_run import ROUNDS, SECONDS, Target
from tests.attack.attacker import ENHANCE_YOUR_CALM, Attacker, repeat
from tests.support.peer import PREDICT_STREAM, Peer, framed, good_request

CANCEL = 8


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Target() as running:
        yield running


def raw(kind: int, stream: int, payload: bytes, flags: int = 0) -> bytes:
    """Frames that hyperframe would not write."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


IDLE_FLOODS: dict[str, bytes] = {
    "ping": PingFrame(0, b"idlehand").serialize(),
    "settings": SettingsFrame(0, {SettingsFrame.ENABLE_PUSH: 0}).serialize(),
    "settings, empty": SettingsFrame(0).serialize(),
    "settings, table size": SettingsFrame(0, {SettingsFrame.HEADER_TABLE_SIZE: 0}).serialize()
    + SettingsFrame(0, {SettingsFrame.HEADER_TABLE_SIZE: 4096}).serialize(),
    "priority": PriorityFrame(1, depends_on=3).serialize(),
    # An idle connection has no use for them; stock clients send them beside DATA.
    "window update of one": WindowUpdateFrame(0, 1).serialize(),
    "unknown type": raw(0xBE, 0, b""),
    "unknown type on a stream": raw(0xBE, 1, b"x"),
}


@pytest.mark.parametrize("deaf", [False, True], ids=["reads", "deaf"])
@pytest.mark.parametrize("name", IDLE_FLOODS)
def test_flood_on_an_idle_connection(target: Target, name: str, deaf: bool) -> None:
    with target.attack() as run:
        attacker = run.attacker().ready()
        attacker.deaf = deaf
        flood = IDLE_FLOODS[name] * 200
        repeat(lambda: attacker.strike(flood), seconds=SECONDS, times=500 * ROUNDS)
        assert attacker.wait_cut_off(2)
    run.check()


def test_empty_data_frames(target: Target) -> None:
    with target.attack() as run:
        attacker = run.attacker().ready()
        attacker.strike(attacker.headers(1, PREDICT_STREAM))
        flood = DataFrame(1, b"").serialize() * 200
        repeat(lambda: attacker.strike(flood), seconds=SECONDS, times=500 * ROUNDS)
        assert attacker.wait_cut_off(2)
    run.check()


def test_data_of_one_byte(target: Target) -> None:
    """A message in as many frames as it has bytes: it costs its sender ten bytes for each."""
    with target.attack() as run:
        attacker = run.attacker().ready()
        attacker.strike(attacker.headers(1, PREDICT_STREAM), attacker.data(1, framed(bytes(60_000))[:5]))
        flood = DataFrame(1, b"\x00").serialize() * 200
        repeat(lambda: attacker.strike(flood), seconds=SECONDS, times=290)
    run.check()


# What makes the server send RST_STREAM on a stream that was opened for it.
PROVOCATIONS: dict[str, Callable[[Attacker, int], list[Frame | bytes]]] = {
    "window update of 0": lambda _, s: [raw(8, s, bytes(4))],
    "window overflow": lambda _, s: [WindowUpdateFrame(s, 2**31 - 1)],
    "data after the end": lambda a, s: [a.data(s, b"", end=True), a.data(s, b"x")],
    "content-length that does not fit": lambda a, s: [a.data(s, b"xyz", end=True)],
    "trailers without the end": lambda a, s: [a.headers(s)],
    "upper case": lambda _, s: [],
}


@pytest.mark.parametrize("name", PROVOCATIONS)
def test_resets_that_the_peer_provokes(target: Target, name: str) -> None:
    """MadeYouReset: a stream that the server itself resets no longer counts as open, but has cost what it costs."""
    extra = {"content-length that does not fit": [("content-length", "1")], "upper case": [("X", "y")]}.get(
        name, []
    )
    with target.attack() as run:
        attacker = run.attacker().ready()
        streams = iter(range(1, 1 << 30, 2))

        def strike() -> bool:
            frames: list[Frame | bytes] = []
            for _ in range(50):
                stream = next(streams)
                frames += [attacker.headers(stream, PREDICT_STREAM, extra=extra)]
                frames += PROVOCATIONS[name](attacker, stream)
            return attacker.strike(*frames)

        repeat(strike, seconds=SECONDS, times=200 * ROUNDS)
        assert attacker.wait_cut_off(2)
    run.check()


@pytest.mark.parametrize("timeout", ["", "30S", "300m"], ids=lambda text: f"timeout {text or 'none'}")
@pytest.mark.parametrize("with_message", [False, True], ids=["headers", "request"])
def test_rapid_reset(target: Target, with_message: bool, timeout: str) -> None:
    """Also of calls with a deadline, which a client resets when it has passed: here it has not."""
    extra = [("grpc-timeout", timeout)] if timeout else []
    with target.attack() as run:
        attacker = run.attacker().ready()
        streams = iter(range(1, 1 << 30, 2))
        message = framed(good_request())

        def strike() -> bool:
            frames: list[Frame] = []
            for _ in range(50):
                stream = next(streams)
                frames.append(attacker.headers(stream, extra=extra))
                if with_message:
                    frames.append(attacker.data(stream, message, end=True))
                frames.append(RstStreamFrame(stream, CANCEL))
            return attacker.strike(*frames)

        repeat(strike, seconds=SECONDS, times=400 * ROUNDS)
        assert attacker.wait_cut_off(2)
    run.check()


# ---- No flood ----


def test_a_ping_with_every_answer_is_no_flood(target: Target) -> None:
    """As grpc-go and grpc-java probe their bandwidth."""
    with Peer(target.port) as peer:
        for index in range(1000):
            peer.send(PingFrame(0, b"bandwidt"))
            assert peer.call(1 + 2 * index, good_request()).status == 0
        assert not peer.goaways


def test_cancelled_calls_among_good_ones_are_no_flood(target: Target) -> None:
    """Four of five are answered: a client with short deadlines, not a rapid reset."""
    with Peer(target.port) as peer:
        for index in range(2000):
            stream = 1 + 2 * index
            peer.send(peer.headers(stream), peer.data(stream, framed(good_request()), end=True))
            if index % 5 == 0:
                peer.send(RstStreamFrame(stream, CANCEL))
            else:
                assert peer.wait_end(stream).status == 0
        peer.ping()
        assert not peer.goaways


def test_the_end_names_its_reason(target: Target) -> None:
    with Attacker(target.port) as attacker:
        attacker.ready()
        repeat(
            lambda: not attacker.write(PingFrame(0, b"idlehand").serialize() * 50), seconds=SECONDS, times=40
        )
        assert attacker.wait_closed() == ENHANCE_YOUR_CALM
        assert b"ping" in attacker.goaways[-1].additional_data
