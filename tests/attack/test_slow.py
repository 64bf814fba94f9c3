# SPDX-License-Identifier: Apache-2.0
"""Peers that begin and never finish: preface, TLS, messages, scrapes. Each is ended in time, and delays no other."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest

from tests.attack.attack_run import SECONDS, AttackRun, Target
from tests.attack.attacker import ATTACKER_HOST
from tests.support.certificates import Certificates
from tests.support.peer import PREDICT_STREAM, PREFACE, framed, good_request

TIMEOUT_S = 1.0
# A sweep comes once a second at the latest.
LATE_S = 2.0


@pytest.fixture(scope="module", params=[False, True], ids=["plaintext", "tls"])
def target(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Target]:
    files = certificates.server_files()
    tls = {"tls_certificate": files.certificate, "tls_key": files.key} if request.param else {}
    ca = certificates.ca if request.param else None
    with Target(settings=tls, ca=ca, handshake_timeout_s=TIMEOUT_S, receive_timeout_s=TIMEOUT_S) as running:
        yield running


def trickle(run: AttackRun, text: bytes) -> None:
    """A byte of it every tenth of a second on every connection, until the server has ended all of them."""
    deadline = time.monotonic() + TIMEOUT_S + LATE_S
    for byte in itertools.chain(text, itertools.repeat(text[-1])):
        if time.monotonic() > deadline or run.cut_off == len(run.attackers):
            return
        for attacker in run.attackers:
            attacker.strike(bytes([byte]))
        time.sleep(0.1)  # the attack's own pace


# A ClientHello of TLS 1.2 that announces more than it sends.
HELLO = bytes.fromhex("16030101fe010001fa0303") + bytes(200)


@pytest.mark.parametrize("text", [PREFACE, HELLO, b"\x00"], ids=["preface", "client hello", "nothing"])
def test_a_handshake_that_never_ends(target: Target, text: bytes) -> None:
    """Whether it is ended as wrong, at its first bytes, or as late: it is ended."""
    with target.attack() as run:
        for _ in range(200):
            run.attacker(hello=False)
        trickle(run, text)
        assert run.cut_off == 200
    run.check(most_cpu_s=200 * 30 * 1e-4)  # a read of one byte is a round of a loop: less than 0.1 ms


@pytest.mark.parametrize("path", ["/fused_mlp.v1.Inference/Predict", PREDICT_STREAM])
def test_a_message_that_never_ends(target: Target, path: str) -> None:
    """A byte of DATA now and then: the call ends with DEADLINE_EXCEEDED, the connection goes on."""
    if target.ca:
        pytest.skip("the same calls as in plaintext")
    message = framed(good_request())
    with target.attack() as run:
        attackers = [run.attacker() for _ in range(20)]
        for attacker in attackers:
            for stream in range(1, 101, 2):
                attacker.send(attacker.headers(stream, path))
        deadline = time.monotonic() + TIMEOUT_S + LATE_S
        for byte in message:
            for attacker in attackers:
                attacker.send(*(attacker.data(stream, bytes([byte])) for stream in range(1, 101, 2)))
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)  # the attack's own pace
        for attacker in attackers:
            assert all(attacker.wait_end(stream).status == 4 for stream in range(1, 101, 2))
    run.check()


def test_slow_scrapes_of_the_metrics_port(target: Target) -> None:
    """300 connections that never finish their request: others can scrape, and threads are bounded."""
    address = urlsplit(target.server.metrics_url)
    with target.attack() as run, ExitStack() as stack:
        threads = target.watch.threads()
        slow = [stack.enter_context(socket.socket()) for _ in range(300)]
        for connection in slow:
            connection.bind((ATTACKER_HOST, 0))
            connection.setblocking(False)
            connection.connect_ex((address.hostname, address.port))
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for connection in slow:
                with suppress(OSError):  # not connected yet, or refused
                    connection.send(b"GET /metrics HTTP/1.1\r\nX: ")
            time.sleep(0.1)  # the attack's own pace
        started = time.monotonic()
        assert target.server.get("/metrics")[0] == 200
        assert time.monotonic() - started < 2
        assert target.watch.threads() - threads <= 64
    run.check(most_cpu_s=300 * 1e-3)
