# SPDX-License-Identifier: Apache-2.0
"""Calls that stay open, and answers that the caller does not take: what they keep is bounded by a budget."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hyperframe.frame import HeadersFrame, SettingsFrame, WindowUpdateFrame

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import reflection_pb2 as reflection
from tests.attack.attack_run import ROUNDS, SECONDS, SMALL_BUDGETS, Target
from tests.attack.attacker import Attacker, literal, repeat, request_fields
from tests.attack.good_client import GET_MODEL
from tests.support.peer import PREDICT_STREAM, framed, good_request

NO_WINDOW = {SettingsFrame.INITIAL_WINDOW_SIZE: 0}
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
WATCH = "/grpc.health.v1.Health/Watch"
# A call that Python answers takes less than 1 ms of it, also on a slow machine.
PYTHON_CALL_S = 1e-3


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Target(**SMALL_BUDGETS) as running:
        yield running


def open_with_big_metadata(attacker: Attacker, path: str, streams: range, message: bytes | None) -> None:
    """Each call carries 11 KB of metadata, in three bytes: references to the dynamic table."""
    values = [literal(b"x-%d" % i, b"a" * 1250, indexed=True) for i in range(3)]
    fields = request_fields(path.encode())
    attacker.strike(HeadersFrame(streams[0], fields + b"".join(values), flags=["END_HEADERS"]))
    block = fields + b"\xbe\xbf\xc0" * 3
    for start in range(1, len(streams), 50):
        frames = []
        for stream in streams[start : start + 50]:
            frames.append(HeadersFrame(stream, block, flags=["END_HEADERS"]))
            if message is not None:
                frames.append(attacker.data(stream, framed(message), end=True))
        attacker.strike(*frames)


@pytest.mark.parametrize(
    ("path", "message"),
    [(REFLECTION, None), (WATCH, b""), (PREDICT_STREAM, None)],
    ids=["reflection", "watch", "predictions"],
)
def test_open_streams_in_mass(target: Target, path: str, message: bytes | None) -> None:
    """Streams that never end, 1000 on each connection, more than the budgets hold: others still get theirs."""
    connections = 10 * ROUNDS
    with target.attack() as run:
        for _ in range(connections):
            open_with_big_metadata(run.attacker().ready(), path, range(1, 2001, 2), message)
        for attacker in run.attackers:
            attacker.ready()
    run.check(most_cpu_s=connections * 1000 * PYTHON_CALL_S)


def test_control_answers_behind_shut_windows(target: Target) -> None:
    """GetModel and reflection answer kilobytes to a few bytes; on many connections no window lets them out."""
    symbol = reflection.ServerReflectionRequest(file_containing_symbol="fused_mlp.v1.Inference")
    calls = {GET_MODEL: fm.GetModelRequest(model="digits").SerializeToString()}
    calls[REFLECTION] = symbol.SerializeToString()
    connections = 50 * ROUNDS
    with target.attack() as run:
        for _ in range(connections):
            attacker = run.attacker(settings=NO_WINDOW).ready()
            frames = []
            for index in range(100):
                path, message = list(calls.items())[index % 2]
                stream = 1 + 2 * index
                frames += [attacker.headers(stream, path), attacker.data(stream, framed(message), end=True)]
            attacker.strike(*frames)
        for attacker in run.attackers:
            attacker.ready()
    run.check(most_cpu_s=connections * 100 * PYTHON_CALL_S)


def test_predictions_behind_shut_windows(target: Target) -> None:
    """PredictStream on many connections, whose answers pile up to the limit of each connection."""
    connections, messages = 60 * ROUNDS, 100
    # Refused, not computed: a full queue is another matter.
    request = framed(good_request(model="nonesuch", request_id="x" * 200)) * 50
    with target.attack() as run:
        for _ in range(connections):
            attacker = run.attacker(settings=NO_WINDOW).ready()
            attacker.strike(attacker.headers(1, PREDICT_STREAM))
            repeat(lambda a=attacker: a.strike(a.data(1, request)), seconds=SECONDS, times=messages)
        for attacker in run.attackers:
            attacker.ready()
    run.check()


def test_a_reader_that_stops_reading(target: Target) -> None:
    """The windows are open, the socket is full: what is serialised for it is bounded too."""
    with target.attack() as run:
        for _ in range(20 * ROUNDS):
            attacker = run.attacker(receive_buffer=4096)
            attacker.deaf = True
            attacker.strike(WindowUpdateFrame(0, 1 << 30), attacker.headers(1, PREDICT_STREAM))
            body = framed(good_request()) * 50
            repeat(lambda a=attacker, b=body: a.strike(a.data(1, b)), seconds=0.3, times=60)
    run.check()


@pytest.mark.parametrize("increment", [1, 7])
def test_windows_opened_by_a_byte(target: Target, increment: int) -> None:
    """An answer that leaves byte by byte: each costs a DATA frame, and counts as a flood."""
    tensor = fm.Tensor(shape=[1024, 64], data=bytes(1024 * 256))  # the answer has 40 KB
    message = framed(fm.PredictRequest(model="digits", input=tensor).SerializeToString())
    with target.attack() as run:
        attacker = run.attacker(settings=NO_WINDOW).ready()
        pieces = [message[i : i + 16384] for i in range(0, len(message), 16384)]
        attacker.strike(attacker.headers(1), *(attacker.data(1, piece) for piece in pieces))
        attacker.strike(attacker.data(1, b"", end=True))
        updates = WindowUpdateFrame(1, increment).serialize() * 100
        repeat(lambda: attacker.strike(updates), seconds=SECONDS, times=50)
        assert attacker.wait_cut_off(2)
    run.check()
