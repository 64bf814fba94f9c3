# SPDX-License-Identifier: Apache-2.0
"""What a client of Envoy sees of replicas that die, hang, are cut off, restart, join and leave, under load: nothing but
a few slow calls."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
import yaml

from deploy.cluster.envoy import CONFIGURATION, Envoy, wait_for
from deploy.cluster.replica import Replica
from tests.cluster.conftest import SETTINGS, Load, answered, wait_for_answers
from tests.cluster.network import Network

(CLUSTER,) = yaml.safe_load((CONFIGURATION / "envoy.yaml").read_text())["static_resources"]["clusters"]
# What a busy machine may add to the times of the configuration.
SLACK_S = 2.0


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def silence_s() -> float:
    """How long a connection to a replica may be silent before its calls are retried elsewhere."""
    (options,) = CLUSTER["typed_extension_protocol_options"].values()
    keepalive = options["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
    return seconds(keepalive["interval"]) + seconds(keepalive["timeout"])


def unhealthy_s() -> float:
    """How long a silent replica may be thought healthy."""
    (check,) = CLUSTER["health_checks"]
    return check["unhealthy_threshold"] * (seconds(check["interval"]) + seconds(check["timeout"]))


def test_the_calls_of_one_connection_are_spread_evenly(envoy: Envoy, replicas: list[Replica]) -> None:
    """With few calls outstanding: under more, a replica that gets less of a core than the others gets less to do."""
    before = [answered(each) for each in replicas]
    with Load(envoy.target, at_once=2) as load:
        wait_for_answers(replicas, 10_000)
        report = load.end()
    counts = [answered(each) - was for each, was in zip(replicas, before, strict=True)]
    print(f"one connection: {counts} calls by replica")
    assert (report["connections"], report["failed"]) == (1, {})
    assert sum(counts) == report["ok"]
    mean = sum(counts) / len(counts)
    assert all(abs(count - mean) < 0.05 * mean for count in counts), counts


Step = Callable[[Network, Replica], None]
LOSSES: dict[str, tuple[Step, Step, Callable[[], float]]] = {
    "killed": (lambda _, it: it.signal(signal.SIGKILL), lambda _, it: it.restart(), lambda: 0.5),
    "paused": (lambda _, it: it.signal(signal.SIGSTOP), lambda _, it: it.signal(signal.SIGCONT), silence_s),
    "cut off": (lambda net, _: net.cut(1), lambda net, _: net.mend(1), silence_s),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_no_call_is_lost_with_a_replica(
    loss: str, envoy: Envoy, replicas: list[Replica], switch: Network
) -> None:
    lose, mend, slowest_s = LOSSES[loss]
    lost, others = replicas[1], [replicas[0], replicas[2]]
    retried = envoy.stat("upstream_rq_retry")
    with Load(envoy.target) as load:
        wait_for_answers(replicas, 500)
        began, already = time.monotonic(), sum(map(answered, others))
        lose(switch, lost)
        try:
            wait_for(lambda: not envoy.replicas()[lost.target], "Envoy leaves it", unhealthy_s() + SLACK_S)
            left, meanwhile = time.monotonic() - began, sum(map(answered, others)) - already
            wait_for_answers(others, 500)
        finally:
            mend(switch, lost)
        wait_for(lambda: envoy.replicas()[lost.target], "Envoy comes back to it")
        wait_for_answers(replicas, 500)
        report = load.end()
    retried = envoy.stat("upstream_rq_retry") - retried
    print(f"{loss}: left after {left:.1f} s and {meanwhile} answers of the others; {report['sent']} calls, {retried} "
          f"retried, the slowest {report['slowest_ms']} ms")  # fmt: skip
    assert report["failed"] == {}, report
    assert report["ok"] == report["sent"]
    assert retried > 0, "calls were in flight on it"
    assert envoy.stat("upstream_rq_retry_overflow") == 0
    assert report["slowest_ms"] < 1000 * (slowest_s() + SLACK_S)
    assert meanwhile > 200 * int(left), "the other replicas do not go on"


@pytest.mark.parametrize("delay_s", [0, 2])
def test_no_call_is_lost_when_every_replica_restarts_in_turn(
    delay_s: float, envoy: Envoy, replicas: list[Replica]
) -> None:
    for replica in replicas:
        replica.restart(drain_delay_s=delay_s)
    wait_for(lambda: all(envoy.replicas().values()), "every replica is healthy")
    retried = envoy.stat("upstream_rq_retry")
    with Load(envoy.target) as load:
        wait_for_answers(replicas, 500)
        for replica in replicas:
            replica.restart(drain_delay_s=0)
            wait_for(lambda replica=replica: envoy.replicas()[replica.target], "Envoy finds the successor")
            wait_for_answers(replicas, 500)
        report = load.end()
    retried = envoy.stat("upstream_rq_retry") - retried
    print(f"restarted in turn, each {delay_s} s after it said so: {report['sent']} calls, {retried} retried")
    assert (report["ok"], report["failed"]) == (report["sent"], {}), report
    assert retried == 0 or delay_s == 0, "Envoy knew of each before it stopped"


def test_a_replica_that_joins_takes_its_share_and_one_that_leaves_gets_nothing(
    envoy: Envoy, replicas: list[Replica], switch: Network
) -> None:
    targets = [each.target for each in replicas]
    joined = Replica(switch.attach(), SETTINGS)
    everyone = [*replicas, joined]
    try:
        with Load(envoy.target) as load:
            wait_for_answers(replicas, 500)
            envoy.set_replicas([*targets, joined.target])
            wait_for_answers([joined], 100)
            before = [answered(each) for each in everyone]
            wait_for_answers(everyone, 3_000)
            counts = [answered(each) - was for each, was in zip(everyone, before, strict=True)]
            envoy.set_replicas(targets)
            idle = answered(joined)
            wait_for_answers(replicas, 1_000)
            # What it had accepted when it was taken off the list may have been counted after.
            assert answered(joined) - idle <= 32
            report = load.end()
    finally:
        joined.stop()
    mean = sum(counts) / len(counts)
    assert abs(counts[-1] - mean) < 0.1 * mean, counts
    assert report["failed"] == {}, report
