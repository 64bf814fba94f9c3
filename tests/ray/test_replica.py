# SPDX-License-Identifier: Apache-2.0
"""What a replica keeps for controllers that come and go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from fused_mlp.service.local.child_server import ServerDidNotStart
from fused_mlp.service.ray.deployment import Deployment
from fused_mlp.service.ray.replica import ReplicaActor, server_environment
from tests.ray.cluster import Nodes, runs, until

FIRST = Deployment("fleet", 1, 1)


@pytest.fixture
def actor(nodes: Nodes) -> Iterator[Any]:
    """Without a server."""
    made = ReplicaActor.options(num_cpus=0).remote(FIRST, FIRST)
    yield made
    ray.kill(made)


def test_a_replica_reports_to_the_twentieth_controller(actor: Any) -> None:
    waits = [actor.ended.remote() for _ in range(20)]
    released, waiting = ray.wait(waits, num_returns=19, timeout=30)
    assert len(released) == 19
    assert ray.get(actor.report.remote(), timeout=30).deployment == FIRST
    ray.kill(actor)
    with pytest.raises(RayActorError):
        ray.get(waiting[0], timeout=30)


def test_the_next_controller_may_ask_again_for_its_start(nodes: Nodes, tmp_path: Path) -> None:
    """Of a server that did not start it hears why; one that did, or is about to, stays the only one."""
    broken = Deployment("broken", 1, 1, {"model_repository": str(tmp_path / "nothing")})
    first, second = (ReplicaActor.options(name=d.name, num_cpus=0).remote(d, d) for d in (broken, FIRST))
    calls = [each.start.remote() for each in (first, second, first, second)]
    for failed in calls[::2]:
        with pytest.raises(ServerDidNotStart, match="nothing"):
            ray.get(failed, timeout=60)
    ray.get(calls[1::2], timeout=60)
    server = ray.get(second.report.remote(), timeout=30).pid
    (actor,) = re.findall(r"^PPid:\t(\d+)$", Path(f"/proc/{server}/status").read_text(), re.MULTILINE)
    children = Path(f"/proc/{actor}/task").glob("*/children")
    assert " ".join(path.read_text() for path in children).split() == [str(server)]
    for each in first, second:
        ray.kill(each)
    until(lambda: not runs(server), "the server ends")


def test_a_controller_that_knows_less_does_not_overwrite_what_the_one_before_left(actor: Any) -> None:
    second = FIRST.changed(None, {"variant": "unfused"})
    for told in ((second, FIRST), (FIRST, FIRST)):
        report = ray.get(actor.report.remote(*told), timeout=30)
        assert (report.deployment, report.settled) == (second, FIRST)
    assert ray.get(actor.report.remote(second, second), timeout=30).settled == second


@pytest.mark.parametrize(("cpus", "cores"), [(0.5, "1"), (1, "1"), (1.5, "2"), (4, "4")])
def test_a_server_counts_on_the_cores_that_it_was_given(
    monkeypatch: pytest.MonkeyPatch, cpus: float, cores: str
) -> None:
    monkeypatch.setenv("FUSED_MLP_THREADS", "64")
    environment = server_environment(Deployment("fleet", 1, 1, cpus=cpus), "127.0.0.2")
    assert environment["FUSED_MLP_CORES"] == cores
    assert "FUSED_MLP_THREADS" not in environment
