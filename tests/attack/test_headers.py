# SPDX-License-Identifier: Apache-2.0
"""Header blocks that cost more than they weigh, or never end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from hyperframe.frame import ContinuationFrame

from tests.attack.attack_run import ROUNDS, SECONDS, Target
from tests.attack.attacker import NEWEST, header_block, literal, repeat, request_fields
from tests.support.peer import PREDICT

FRAME_BYTES = 64 << 10  # what our SETTINGS allow
PATH = PREDICT.encode()


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Target(receive_timeout_s=1.0) as running:
        yield running


@pytest.mark.parametrize("name", [b"x", b"x-bin", b"cookie", b":authority"])
def test_references_past_the_header_limit(target: Target, name: bytes) -> None:
    """One field of 4 KB in the dynamic table, then half a million references of one byte to it: 2 GB to decode."""
    entry = literal(name, b"a" * (4096 - 32 - len(name)), indexed=True)
    references = NEWEST * (8 * FRAME_BYTES - 4096)
    with target.attack() as run:
        deadline = time.monotonic() + SECONDS
        for _ in range(8 * ROUNDS):
            attacker = run.attacker().ready()
            fields = entry + request_fields(PATH) if name.startswith(b":") else request_fields(PATH) + entry
            attacker.strike(*header_block(1, fields + references, frame_bytes=FRAME_BYTES))
            if time.monotonic() > deadline:
                break
    run.check()


def test_references_in_many_small_blocks(target: Target) -> None:
    """Each block four times the limit, on a stream of its own: refused one by one, or cut off."""
    entry = literal(b"x", b"a" * 4000, indexed=True)
    with target.attack() as run:
        attacker = run.attacker().ready()
        attacker.strike(*header_block(1, request_fields(PATH) + entry))
        streams = iter(range(3, 1 << 30, 2))
        block = request_fields(PATH) + NEWEST * 16

        def strike() -> bool:
            parts = (header_block(next(streams), block) for _ in range(50))
            return attacker.strike(*(frame for frames in parts for frame in frames))

        repeat(strike, seconds=SECONDS, times=400 * ROUNDS)
    run.check()


def test_a_huge_number_of_tiny_continuations(target: Target) -> None:
    """CONTINUATION of one byte, and of none: the CONTINUATION flood."""
    with target.attack() as run:
        for size in (0, 1):
            attacker = run.attacker().ready()
            attacker.strike(*header_block(1, request_fields(PATH), end=False))
            flood = ContinuationFrame(1, b"\x00" * size).serialize() * 1000
            repeat(lambda a=attacker, f=flood: a.strike(f), seconds=SECONDS / 2, times=1000 * ROUNDS)
            assert attacker.wait_cut_off(2)
    run.check()


def test_unfinished_header_blocks_time_out(target: Target) -> None:
    """HEADERS without END_HEADERS on many connections, then nothing, or a byte of CONTINUATION now and then."""
    with target.attack() as run:
        attackers = [run.attacker().ready() for _ in range(200)]
        for attacker in attackers:
            attacker.strike(*header_block(1, request_fields(PATH), end=False))
        trickle = itertools.cycle(ContinuationFrame(1, b"").serialize())
        deadline = time.monotonic() + 4  # receive_timeout_s, and how late a sweep may be
        while time.monotonic() < deadline and run.cut_off < len(attackers):
            byte = bytes([next(trickle)])
            for attacker in attackers[:100]:
                attacker.strike(byte)
            for attacker in attackers:
                attacker.swallow()
            time.sleep(0.1)  # the attack's own pace
        assert run.cut_off == len(attackers)
    run.check()


def test_headers_over_the_limit_again_and_again(target: Target) -> None:
    """60 KB of literals per call: each is refused, and costs no more than its bytes."""
    with target.attack() as run:
        attacker = run.attacker().ready()
        block = request_fields(PATH) + literal(b"x", b"a" * 60_000, indexed=False)
        streams = iter(range(1, 1 << 30, 2))
        repeat(
            lambda: attacker.strike(*header_block(next(streams), block, frame_bytes=FRAME_BYTES)),
            seconds=SECONDS,
            times=300 * ROUNDS,
        )
    run.check()
