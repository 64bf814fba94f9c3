# SPDX-License-Identifier: Apache-2.0
"""Connections without calls: one host does not lock the others out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.attack_run import ROUNDS, Target
from tests.attack.attacker import ATTACKER_HOST


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Target() as running:
        yield running


# Of a connection: nghttp2's session, ours, and what the allocator rounds up; TLS is not in this test.
CONNECTION_BYTES = 64 << 10


@pytest.mark.parametrize("hosts", [1, 4])
@pytest.mark.parametrize("hello", [True, False], ids=["idle", "silent"])
def test_more_idle_connections_than_the_server_takes(target: Target, hosts: int, hello: bool) -> None:
    """1100 where 1024 are allowed; newcomers of another host are served, and no connection in use is closed."""
    with target.attack() as run:
        for index in range(1100):
            run.attacker(host=f"127.0.0.{2 + index % hosts}", hello=hello)
    run.check(most_cpu_s=1100 * 1e-3, most_growth_bytes=1100 * CONNECTION_BYTES)


def test_connections_that_come_and_go(target: Target) -> None:
    """A connection and its preface, 2000 times: each costs what an accept costs."""
    with target.attack() as run:
        for _ in range(2000 * ROUNDS):
            run.attacker(host=ATTACKER_HOST).__exit__()
    run.check(most_cpu_s=2000 * ROUNDS * 1e-3)
