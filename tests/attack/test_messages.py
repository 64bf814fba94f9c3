# SPDX-License-Identifier: Apache-2.0
"""Messages that cost more than they weigh: to unpack, to hold, to forget."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hyperframe.frame import SettingsFrame

from tests.attack.attack_run import ROUNDS, SECONDS, SMALL_BUDGETS, Target
from tests.attack.attacker import bomb, empty_blocks, repeat
from tests.support.peer import PREDICT, PREDICT_STREAM, framed

MIB = 1 << 20
MESSAGE_BYTES = 4 * MIB
GZIP = [("grpc-encoding", "gzip")]
NO_WINDOW = {SettingsFrame.INITIAL_WINDOW_SIZE: 0}
# zlib unpacks runs of zeros at 0.3-1 ns a byte; the message is then looked at once. Four times that.
INFLATE_NS_PER_BYTE = 4


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Target(max_message_bytes=MESSAGE_BYTES, **SMALL_BUDGETS) as running:
        yield running


@pytest.mark.parametrize("path", [PREDICT, PREDICT_STREAM])
def test_gzip_bombs(target: Target, path: str) -> None:
    """Messages of 4 KB that unpack to the limit. Taking gzip means unpacking it; other callers must not wait for it."""
    message = framed(bomb(MESSAGE_BYTES), compressed=True)
    unpacked = 0
    with target.attack() as run:
        attackers = [run.attacker().ready() for _ in range(2)]
        streams = iter(range(1, 1 << 30, 2))

        def strike() -> bool:
            nonlocal unpacked
            for attacker in attackers:
                stream = next(streams)
                unpacked += 16 * MESSAGE_BYTES
                if path == PREDICT:
                    calls = [stream, *(next(streams) for _ in range(15))]
                    pairs = [
                        (attacker.headers(s, path, extra=GZIP), attacker.data(s, message, end=True))
                        for s in calls
                    ]
                    frames = [frame for pair in pairs for frame in pair]
                else:
                    frames = [attacker.headers(stream, path, extra=GZIP)]
                    frames += [attacker.data(stream, message) for _ in range(16)]
                attacker.strike(*frames)
            return not all(attacker.cut_off for attacker in attackers)

        repeat(strike, seconds=SECONDS, times=16 * ROUNDS)
    run.check(most_cpu_s=unpacked * INFLATE_NS_PER_BYTE / 1e9)


def test_gzip_that_unpacks_to_nothing(target: Target) -> None:
    """Blocks without content: 2 MB of them take zlib 150 ms, and give it no output to stop at."""
    message = framed(empty_blocks(2 * MIB), compressed=True)
    with target.attack() as run:
        attackers = [run.attacker().ready() for _ in range(4)]  # on every loop
        streams = iter(range(1, 1 << 30, 2))

        def strike() -> bool:
            for attacker in attackers:
                stream = next(streams)
                attacker.strike(
                    attacker.headers(stream, PREDICT, extra=GZIP),
                    *(
                        attacker.data(
                            stream, message[start : start + 16_000], end=start + 16_000 >= len(message)
                        )
                        for start in range(0, len(message), 16_000)
                    ),
                )
            return not all(attacker.cut_off for attacker in attackers)

        repeat(strike, seconds=SECONDS, times=ROUNDS)
    # 70 ns a byte, in each message once.
    run.check(most_cpu_s=4 * len(attackers) * ROUNDS * len(message) * 70 / 1e9 + 0.5)


@pytest.mark.parametrize("size", [MESSAGE_BYTES + 1, 64 * MESSAGE_BYTES], ids=["one byte over", "far over"])
def test_gzip_bombs_over_the_limit(target: Target, size: int) -> None:
    """Unpacking stops at the limit, the call ends, and its other messages are not unpacked."""
    message = framed(bomb(size), compressed=True)
    calls = 0
    with target.attack() as run:
        attacker = run.attacker().ready()
        streams = iter(range(1, 1 << 30, 2))

        def strike() -> bool:
            nonlocal calls
            calls += 1
            stream = next(streams)
            head = attacker.headers(stream, PREDICT_STREAM, extra=GZIP)
            body = message * (64_000 // len(message) or 1)
            pieces = [attacker.data(stream, body[i : i + 16384]) for i in range(0, len(body), 16384)]
            return attacker.strike(head, *pieces)

        repeat(strike, seconds=SECONDS, times=100 * ROUNDS)
    run.check(most_cpu_s=calls * MESSAGE_BYTES * INFLATE_NS_PER_BYTE / 1e9)


def test_empty_messages_behind_a_shut_window(target: Target) -> None:
    """Five bytes each, held because no answer can go out; then the connection closes with all of them."""
    with target.attack() as run:
        attacker = run.attacker(settings=NO_WINDOW).ready()
        body = framed(b"") * 3276
        for stream in range(1, 2 + 16 * ROUNDS, 2):
            attacker.strike(attacker.headers(stream, PREDICT_STREAM))
            repeat(
                lambda s=stream: attacker.strike(attacker.data(s, body)),
                seconds=SECONDS,
                times=MIB // len(body),
            )
    run.check()


def test_small_messages_do_not_pin_big_buffers(target: Target) -> None:
    """A big message leaves its buffer for the next one, which has two bytes and never ends."""
    big = framed(bomb(2 * MIB - 4096), compressed=True)
    with target.attack() as run:
        attacker = run.attacker().ready()
        streams = iter(range(1, 1 << 30, 2))
        for _ in range(150 * ROUNDS):
            first, second = next(streams), next(streams)
            attacker.strike(
                attacker.headers(first, extra=GZIP),
                attacker.data(first, big, end=True),
                attacker.headers(second),
                attacker.data(second, framed(b"ab")[:-1]),
            )
    run.check(most_cpu_s=150 * ROUNDS * 2 * MIB * INFLATE_NS_PER_BYTE / 1e9)


def test_unfinished_messages_in_mass(target: Target) -> None:
    """Each promises 4 MiB, and sends a byte: memory is taken as bytes come, and is bounded by the account."""
    with target.attack() as run:
        for _ in range(8):
            attacker = run.attacker().ready()
            start = framed(bytes(MESSAGE_BYTES))[:6]
            calls = ((attacker.headers(s), attacker.data(s, start)) for s in range(1, 2001, 2))
            attacker.strike(*(frame for call in calls for frame in call))
    run.check()
