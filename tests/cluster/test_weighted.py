# SPDX-License-Identifier: Apache-2.0
"""Balancing by reported load (deploy/envoy/weighted.yaml): a replica whose core is taken by a neighbour gets less."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deploy.cluster.envoy import Envoy, wait_for
from deploy.cluster.replica import Replica
from tests.cluster.conftest import Load, start_envoy


@contextmanager
def busy_neighbour(replica: Replica, core: int) -> Iterator[None]:
    """The replica on this core, with four processes that never rest. They have some priority: beside equals, a server
    that needs a tenth of a core gets it at once, and has nothing to report."""
    everywhere = os.sched_getaffinity(0)
    pin(replica, {core})
    command = ["nice", "-n", "-5", "taskset", "-c", str(core), sys.executable, "-c", "while True: pass"]
    neighbours = [subprocess.Popen(command, start_new_session=True) for _ in range(4)]
    try:
        for each in neighbours:
            with suppress(FileNotFoundError):  # where the kernel gives each session a share, not each process
                Path(f"/proc/{each.pid}/autogroup").write_text("-5")
        yield
    finally:
        for each in neighbours:
            each.kill()
            each.wait()
        pin(replica, everywhere)


def pin(replica: Replica, cores: set[int]) -> None:
    for thread in Path(f"/proc/{replica.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def shares(envoy: Envoy, calls: int) -> list[float]:
    """Of about so many calls, by replica. The replicas are not asked: scrapes would be most of their load."""
    before = envoy.calls()
    wait_for(lambda: sum(envoy.calls().values()) - sum(before.values()) >= calls, f"{calls} calls")
    counts = [now - before[where] for where, now in envoy.calls().items()]
    return [count / sum(counts) for count in counts]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the neighbour would be everyone's on one core")
def test_a_replica_with_a_busy_neighbour_gets_less(replicas: list[Replica], tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    with start_envoy(tmp_path, replicas, weighted=True) as envoy, Load(envoy.target, 8) as load:
        assert all(share == pytest.approx(1 / 3, rel=0.05) for share in shares(envoy, 1_000)), "no report yet"
        with busy_neighbour(replicas[0], core):
            wait_for(lambda: shares(envoy, 1_000)[0] < 0.25, "the one with the neighbour gets less", 60)
        report = load.end()
    assert report["failed"] == {}, report
