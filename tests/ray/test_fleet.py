# SPDX-License-Identifier: Apache-2.0
"""A fleet on a real cluster of three raylets, under load the whole time: what fails may only be what was in flight on
a replica that was killed. One fleet for all tests, in the order in which they stand here."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import ray

from deploy.cluster.envoy import Envoy, configure
from deploy.cluster.packages import install_envoy
from fused_mlp.service.client import Client
from fused_mlp.service.ray.cluster import Fleet
from fused_mlp.service.ray.deployment import FleetError
from tests.ray.cluster import Nodes, read_endpoints, runs, until
from tests.ray.load import Load


@pytest.fixture(scope="module")
def folder(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("fleet") / "endpoints"
    # A low target: the load's own process takes a core, and on two of them three servers share the other.
    few = ("--target-utilization", "0.1", "--scale-down-after", "8s")
    nodes.command("up", "--replicas", "3", "--endpoints", str(path), *few)
    yield path
    pids = [replica["pid"] for replica in Fleet("fused-mlp").status()["replicas"]]
    nodes.command("down")
    assert not any(map(runs, pids))
    assert read_endpoints(path) == []


@pytest.fixture
def fleet(folder: Path) -> Fleet:
    """Settled: of three replicas, all ready."""
    fleet = Fleet("fused-mlp")
    until(lambda: settled(fleet), f"three replicas, {fleet.status()}")
    return fleet


def settled(fleet: Fleet) -> bool:
    replicas = fleet.status()["replicas"]
    return len(replicas) == 3 and all(replica["state"] == "ready" for replica in replicas)


def pids(fleet: Fleet) -> dict[str, int]:
    return {replica["name"]: replica["pid"] for replica in fleet.status()["replicas"]}


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def names(folder: Path) -> set[str]:
    return {endpoint["replica"] for endpoint in read_endpoints(folder)}


def test_replicas_are_spread_over_the_nodes_and_told_to_envoy_prometheus_and_clients(
    nodes: Nodes, fleet: Fleet, folder: Path
) -> None:
    status = json.loads(nodes.command("status", "--json"))
    assert len({replica["node"] for replica in status["replicas"]}) == 3
    addresses = {replica["address"] for replica in status["replicas"]}
    assert set((folder / "endpoints.txt").read_text().split()) == addresses
    (resource,) = json.loads((folder / "endpoints.yaml").read_text())["resources"]
    (group,) = resource["endpoints"]
    sockets = [each["endpoint"]["address"]["socket_address"] for each in group["lb_endpoints"]]
    assert {f"{s['address']}:{s['port_value']}" for s in sockets} == addresses
    for address in addresses:
        with Client(address) as client:
            assert client.predict("digits", [0.0] * 64).output.shape == (10,)
    again = nodes.run("up", "--replicas", "3")
    assert again.returncode == 1
    assert "is up; `fused-mlp ray rollout` changes it" in again.stderr


def test_a_server_that_is_killed_is_replaced(fleet: Fleet, folder: Path) -> None:
    name, pid = next(iter(pids(fleet).items()))
    with Load(folder) as load:
        load.wait_for(200)
        os.kill(pid, signal.SIGKILL)
        out_s = until(lambda: name not in names(folder), "the dead one leaves the endpoints")
        new_s = until(lambda: settled(fleet) and len(names(folder)) == 3, "another one takes its place")
        load.wait_for(200)
    print(f"\nserver killed: out after {out_s:.2f} s, replaced after {new_s:.1f} s, {load.told()}")
    assert len(load.failures) <= load.in_flight


def test_no_server_outlives_its_actor(fleet: Fleet, folder: Path) -> None:
    name, pid = next(iter(pids(fleet).items()))
    actor = parent(pid)
    with Load(folder) as load:
        load.wait_for(200)
        os.kill(actor, signal.SIGKILL)
        until(lambda: not runs(pid), "the server ends")
        until(lambda: name not in names(folder) and settled(fleet), "another one takes its place")
        load.wait_for(200)
    print(f"\nactor killed: {load.told()}")
    assert len(load.failures) <= load.in_flight


def kill_controller(fleet: Fleet) -> None:
    before = fleet.status()["controller"]["pid"]
    ray.kill(ray.get_actor("fused-mlp/controller"), no_restart=False)
    until(lambda: fleet.status()["controller"]["pid"] != before, "the controller is back")


def test_a_controller_that_is_killed_again_and_again_goes_on_with_the_same_replicas(
    fleet: Fleet, folder: Path
) -> None:
    """As often as a replica has threads for it, and more."""
    before = pids(fleet)
    with Load(folder) as load:
        load.wait_for(200)
        for _ in range(6):
            kill_controller(fleet)
            until(lambda: settled(fleet), "the replicas answer it")
            assert pids(fleet) == before
        load.wait_for(200)
    assert load.failures == []


def test_the_replicas_of_a_dead_node_are_replaced_on_others(nodes: Nodes, fleet: Fleet, folder: Path) -> None:
    node = next(n for n in nodes.others if n.node_id != fleet.status()["controller"]["node"])
    (lost,) = [r for r in fleet.status()["replicas"] if r["node"] == node.node_id]
    with Load(folder) as load:
        load.wait_for(200)
        nodes.kill(node)
        end_s = until(lambda: not runs(lost["pid"]), "the server ends with its node")
        out_s = until(lambda: lost["name"] not in names(folder), "it leaves the endpoints")
        new_s = until(lambda: settled(fleet) and len(names(folder)) == 3, "another one takes its place")
        load.wait_for(200)
    times = f"ended after {end_s:.2f} s, out {out_s:.2f} s later, replaced {new_s:.1f} s later"
    print(f"\nnode killed: {times}, {load.told()}")
    assert len(load.failures) <= load.in_flight
    nodes.others.append(nodes.add())


def test_a_rollout_replaces_all_and_fails_nothing(nodes: Nodes, fleet: Fleet, folder: Path) -> None:
    """Seen by clients that read the endpoints, and by others behind Envoy, which reads them too."""
    before = pids(fleet)
    configure(folder, any_ports=True)
    with Envoy(install_envoy(), folder) as envoy, Load(folder) as load, Load(envoy.target, 2) as behind_envoy:
        for each in load, behind_envoy:
            each.wait_for(200)
        nodes.command("rollout", "--set", "queue_rows=1234")
        for each in load, behind_envoy:
            each.wait_for(200)
        assert envoy.replicas().keys() == {endpoint["address"] for endpoint in read_endpoints(folder)}
    assert not before.keys() & pids(fleet).keys()
    assert not any(map(runs, before.values()))
    assert load.failures == behind_envoy.failures == []
    for endpoint in read_endpoints(folder):
        with urlopen(f"{endpoint['metrics_url']}/metrics", timeout=10) as answer:
            assert "\nfused_mlp_queue_capacity_rows 1234\n" in answer.read().decode()
    print(f"\nrollout: {load.told()}, behind Envoy {behind_envoy.told()}")


def test_a_controller_that_hears_of_no_replica_changes_nothing_until_it_does(
    fleet: Fleet, folder: Path
) -> None:
    """It does not know of the rollout before, and would take all replicas for others than it wants."""
    before, deployment = pids(fleet), fleet.deployment()
    actors = [parent(pid) for pid in before.values()]
    with Load(folder) as load:
        try:
            for actor in actors:
                os.kill(actor, signal.SIGSTOP)
            kill_controller(fleet)
            assert pids(fleet) == dict.fromkeys(before, 0)
            unaware = fleet.deployment()
            assert unaware.revision < deployment.revision
            with pytest.raises(
                FleetError, match="no replica has answered since the controller started again"
            ):
                fleet.roll_out(unaware.changed("4", {}))
            load.wait_for(100)
        finally:
            for actor in actors:
                os.kill(actor, signal.SIGCONT)
        until(lambda: settled(fleet), "the replicas answer")
        assert pids(fleet) == before
    assert fleet.deployment() == deployment
    assert load.failures == []


def test_a_rollout_that_cannot_start_goes_back(
    nodes: Nodes, fleet: Fleet, folder: Path, tmp_path: Path
) -> None:
    before = pids(fleet)
    with Load(folder) as load:
        load.wait_for(100)
        done = nodes.run("rollout", "--repository", str(tmp_path / "nothing"))
        load.wait_for(100)
    assert done.returncode == 3
    assert "rolled back: the server did not start" in done.stderr
    assert str(tmp_path / "nothing") in done.stderr
    assert pids(fleet) == before
    assert load.failures == []


def test_a_rollout_goes_back_also_if_the_controller_dies_meanwhile(
    fleet: Fleet, folder: Path, tmp_path: Path
) -> None:
    before, deployment = pids(fleet), fleet.deployment()
    wanted = deployment.changed(None, {"model_repository": str(tmp_path / "nothing")})
    with Load(folder) as load:
        fleet.roll_out(wanted)
        with pytest.raises(
            FleetError, match=r"^the fleet 'fused-mlp' was changed by another command; try again$"
        ):
            fleet.roll_out(deployment.changed("4", {}))
        until(lambda: len(pids(fleet)) > 3, "a new replica")
        kill_controller(fleet)
        until(lambda: not fleet.status()["rollout"] and settled(fleet), f"as before, {fleet.status()}")
        load.wait_for(100)
    assert str(tmp_path / "nothing") in fleet.status()["error"]
    assert fleet.deployment().settings == deployment.settings
    assert pids(fleet) == before
    assert load.failures == []


def test_load_starts_replicas_and_its_end_stops_them(nodes: Nodes, fleet: Fleet, folder: Path) -> None:
    before = pids(fleet)
    nodes.command("rollout", "--replicas", "3-5")
    assert pids(fleet) == before  # another number alone restarts none
    with Load(folder, threads=1, pause_s=0.02) as quiet:
        with Load(folder, threads=6, rows=200, pause_s=0) as load:
            up_s = until(lambda: len(names(folder)) > 3, "more replicas")
            load.wait_for(100)
        down_s = until(lambda: settled(fleet), "three again")
        quiet.wait_for(100)
    print(f"\nscaled up after {up_s:.1f} s, down after {down_s:.1f} s, {load.told()}, {quiet.told()}")
    assert load.failures == quiet.failures == []
