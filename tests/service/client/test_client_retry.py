# SPDX-License-Identifier: Apache-2.0
"""Which failures are tried again, when, and that no retry outlives its call's deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import grpc
import pytest

from fused_mlp.service.client import PredictError, RetryPolicy
from fused_mlp.service.client.retry import Attempts

X = [1.0, 2.0, 3.0, 4.0]
FAST = RetryPolicy(attempts=3, first_wait_s=0.001, jitter=0)


def test_unavailable_is_retried_until_it_works(connect, scripted, fail, expected):
    fail("UNAVAILABLE")
    fail("UNAVAILABLE")
    prediction = connect(scripted.target, retry=FAST).predict("tiny", X)
    assert prediction.output == pytest.approx(expected(X))
    assert len(scripted.requests) == 3


def test_the_last_attempt_ends_in_the_servers_error(connect, scripted, fail):
    for number in range(3):
        fail("UNAVAILABLE", f"draining {number}")
    with pytest.raises(PredictError, match="UNAVAILABLE: draining 2"):
        connect(scripted.target, retry=FAST).predict("tiny", X)
    assert len(scripted.requests) == 3


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "NOT_FOUND", "INTERNAL", "RESOURCE_EXHAUSTED"])
def test_other_failures_are_final(connect, scripted, fail, code):
    fail(code)
    with pytest.raises(PredictError, match=code):
        connect(scripted.target, retry=FAST).predict("tiny", X)
    assert len(scripted.requests) == 1


def test_an_overloaded_server_is_asked_again_when_it_said_to(connect, scripted, fail):
    fail("RESOURCE_EXHAUSTED", retry_after_ms=60)
    started = time.monotonic()
    connect(scripted.target, retry=FAST).predict("tiny", X)
    assert time.monotonic() - started >= 0.06
    assert len(scripted.requests) == 2


def test_a_wait_past_the_deadline_is_not_begun(connect, scripted, fail):
    fail("RESOURCE_EXHAUSTED", "queue full", retry_after_ms=60_000)
    with pytest.raises(PredictError, match="queue full") as caught:
        connect(scripted.target).predict("tiny", X, timeout_s=2)
    assert caught.value.retry_after_s == 60
    assert len(scripted.requests) == 1


def test_retries_share_one_deadline(connect, scripted, fail):
    fail("UNAVAILABLE")
    policy = RetryPolicy(attempts=2, first_wait_s=0.2, jitter=0)
    connect(scripted.target, retry=policy).predict("tiny", X, timeout_s=5)
    first, second = scripted.time_remaining
    assert second < first - 0.15  # 0.2 s were spent waiting; the wire rounds a deadline by some milliseconds


def test_nobody_listening_names_the_target_and_the_reason(connect):
    with socket.socket() as taken:  # bound but not listening: refused, and nobody else can get the port
        taken.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PredictError) as caught:
            connect(target, retry=FAST).predict("tiny", X)
    assert str(caught.value) == f"UNAVAILABLE: no answer from {target}: Connection refused"
    assert caught.value.unreachable


def test_a_server_that_comes_up_late_is_reached(connect, scripted):
    """The first attempts find a closed port; it opens while the client backs off."""
    with socket.socket() as front:
        front.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{front.getsockname()[1]}"
        client = connect(target, retry=RetryPolicy(attempts=20, first_wait_s=0.05, longest_wait_s=0.1))
        opened = threading.Timer(0.3, _relay, (front, scripted.target))
        opened.start()
        assert client.predict("tiny", X, timeout_s=10).output.shape == (3,)
        opened.join()


def _relay(front: socket.socket, target: str) -> None:
    """Listen, accept one connection and copy bytes both ways in daemon threads."""
    front.listen()
    near, _ = front.accept()
    host, port = target.split(":")
    far = socket.create_connection((host, int(port)))

    def copy(source: socket.socket, sink: socket.socket) -> None:
        # Either side may hang up first; the relay then ends, as a wire would.
        with source, sink, contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)

    threading.Thread(target=copy, args=(near, far.dup()), daemon=True).start()
    threading.Thread(target=copy, args=(far, near.dup()), daemon=True).start()


def error(code: str, retry_after_s: float | None = None) -> PredictError:
    return PredictError(grpc.StatusCode[code], "", retry_after_s=retry_after_s)


def test_waits_double_up_to_the_longest():
    policy = RetryPolicy(attempts=9, first_wait_s=0.1, longest_wait_s=0.5, jitter=0)
    waits = [policy.wait_s(error("UNAVAILABLE"), attempt) for attempt in range(1, 10)]
    assert waits == [0.1, 0.2, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5, None]


def test_jitter_stretches_a_wait_but_never_shortens_what_the_server_asked_for():
    policy = RetryPolicy(jitter=0.2, random=lambda: 0.5)
    assert policy.wait_s(error("RESOURCE_EXHAUSTED", retry_after_s=3.0), 1) == pytest.approx(3.3)
    assert policy.wait_s(error("UNAVAILABLE", retry_after_s=3.0), 1) == pytest.approx(3.3)


def test_without_a_deadline_attempts_alone_bound_the_call():
    attempts = Attempts(RetryPolicy(attempts=2, first_wait_s=0), timeout_s=None)
    assert attempts.remaining_s() is None
    assert attempts.wait_after(error("UNAVAILABLE")) == 0
    with pytest.raises(PredictError):
        attempts.wait_after(error("UNAVAILABLE"))


def test_an_attempt_cut_off_by_the_deadline_hides_no_earlier_reason():
    now = 0.0
    attempts = Attempts(RetryPolicy(attempts=9, first_wait_s=0), timeout_s=1, clock=lambda: now)
    attempts.wait_until_ready(error("UNAVAILABLE"))
    now = 1.0
    with pytest.raises(PredictError, match="UNAVAILABLE"):
        attempts.wait_until_ready(error("DEADLINE_EXCEEDED"))


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first_wait_s": -1}, {"jitter": -0.1}])
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="at least"):
        RetryPolicy(**wrong)
