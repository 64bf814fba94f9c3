# SPDX-License-Identifier: Apache-2.0
"""Broken input at the level of frames: whatever one peer sends, a good one on another connection never notices."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hyperframe.frame import SettingsFrame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.peer import PREDICT, PREDICT_STREAM, PREFACE, Peer, framed, good_request
from tests.support.toy_front import ToyFront

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)

EXAMPLES = int(os.environ.get("FUSED_MLP_FUZZ_EXAMPLES", "150"))
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
HELLO = PREFACE + SettingsFrame(0).serialize()


@pytest.fixture(scope="module")
def front() -> Iterator[ToyFront]:
    with ToyFront(max_resets_per_s=100_000, max_connections=4096) as running:
        yield running


@pytest.fixture(scope="module")
def good(front: ToyFront) -> Iterator[Iterator[int]]:
    """Answers once per call of `next`, over one connection that lives as long as the module."""
    with Peer(front.port) as peer:

        def answers() -> Iterator[int]:
            for stream in range(1, 2**31, 2):
                yield peer.call(stream, good_request()).status

        yield answers()


def raw_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


frames = st.builds(
    raw_frame,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1, 2**31]),
    st.one_of(
        st.binary(max_size=64), st.just(framed(good_request())), st.just(bytes(8)), st.just(b"\0\0\0\1")
    ),
)


def throw(front: ToyFront, data: bytes) -> None:
    """Say it and leave, whether the server has closed already or not."""
    try:
        with Peer(front.port, hello=False) as peer:
            peer.write(data)
    except ConnectionError:
        pass


@fuzzed
@given(data=st.binary(max_size=400))
def test_bytes_that_are_no_http2(front: ToyFront, good: Iterator[int], data: bytes) -> None:
    throw(front, data)
    throw(front, HELLO + data)
    assert next(good) == 0


@fuzzed
@given(sequence=st.lists(frames, min_size=1, max_size=8))
def test_frames_in_any_order(front: ToyFront, good: Iterator[int], sequence: list[bytes]) -> None:
    throw(front, HELLO + b"".join(sequence))
    assert next(good) == 0


@fuzzed
@given(path=st.sampled_from([PREDICT, PREDICT_STREAM]), data=st.data())
def test_good_session_with_bytes_changed(
    front: ToyFront, good: Iterator[int], path: str, data: st.DataObject
) -> None:
    try:
        with Peer(front.port) as peer:
            session = (
                peer.headers(1, path).serialize() + peer.data(1, framed(good_request()), end=True).serialize()
            )
            changed = bytearray(session)
            for place in data.draw(st.lists(st.integers(0, len(session) - 1), min_size=1, max_size=6)):
                changed[place] = data.draw(st.integers(0, 255))
            peer.write(bytes(changed[: data.draw(st.integers(1, len(changed)))]))
    except ConnectionError:
        pass
    assert next(good) == 0


@fuzzed
@given(messages=st.lists(st.one_of(st.binary(max_size=80), st.just(good_request())), min_size=1, max_size=6))
def test_messages_of_any_bytes_are_each_answered(front: ToyFront, messages: list[bytes]) -> None:
    with Peer(front.port) as peer:
        peer.begin(1, PREDICT_STREAM)
        for message in messages:
            peer.send(peer.data(1, framed(message)))
        peer.send(peer.data(1, b"", end=True))
        answer = peer.wait_end(1)
        assert (answer.status, len(answer.messages())) == (0, len(messages))
