# SPDX-License-Identifier: Apache-2.0
"""The accounts of memory: what they charge is what the server keeps, it is free again when the peers have gone, and
the budgets together fit into a pod."""

from __future__ import annotations

import pytest
from hyperframe.frame import HeadersFrame, SettingsFrame

from fused_mlp.service.settings.limits import Limits
from tests.attack.attack_run import BUDGETS, Target
from tests.attack.attacker import request_fields
from tests.support import sanitized
from tests.support.peer import PREDICT_STREAM, framed, good_request

MIB = 1 << 20
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
WATCH = "/grpc.health.v1.Health/Watch"
ACCOUNTS = ("requests", "answers", "calls", "control")
# The good client has calls and answers under way, and each loop leases up to 512 KiB of an account.
GOOD_CLIENT_BYTES = 2 * MIB


def charged(target: Target) -> dict[str, int]:
    read = target.server.metric
    return {name: int(read("fused_mlp_front_memory_bytes", account=name)) for name in ACCOUNTS}


def wait_freed(target: Target) -> None:
    """Each scrape gives the loops time to sweep."""
    for _ in range(200):
        if all(used < GOOD_CLIENT_BYTES for used in charged(target).values()):
            return
    raise AssertionError(charged(target))


def test_default_budgets_fit_a_pod_of_2_gib() -> None:
    """With torch for the unfused variant a server has 600 MB before the first peer."""
    assert 600 * 10**6 + 1.1 * sum(getattr(Limits(), name) for name in BUDGETS) < 2 << 30


@pytest.mark.parametrize(
    ("path", "message"),
    [(PREDICT_STREAM, None), (REFLECTION, None), (WATCH, b"")],
    ids=lambda v: str(v)[-12:],
)
def test_open_calls_cost_no_more_than_they_are_charged(path: str, message: bytes | None) -> None:
    connections, calls = 10, 250
    with Target() as target:
        with target.attack() as run:
            attackers = [run.attacker().ready() for _ in range(connections)]
            resident = target.watch.resident_bytes()
            for attacker in attackers:
                frames = []
                for stream in range(1, 2 * calls, 2):
                    block = request_fields(path.encode())
                    frames.append(HeadersFrame(stream, block, flags=["END_HEADERS"]))
                    if message is not None:
                        frames.append(attacker.data(stream, framed(message), end=True))
                attacker.strike(*frames)
            for attacker in attackers:
                attacker.ready()
            target.server.get("/metrics")  # Python has come to its tasks when it answers this
            grown = target.watch.resident_bytes() - resident
            now = charged(target)
            assert now["calls"] >= connections * calls * 1024
            if not sanitized.BUILD:
                assert grown < sum(now.values()) + 2 * MIB, now
        assert not any(caller["errors"] for caller in run.callers.values())
        wait_freed(target)


def test_answers_and_held_requests_cost_no_more_than_they_are_charged() -> None:
    """Behind shut windows, on many connections: answers up to the budget, the requests after them as bytes."""
    with Target(max_buffered_bytes=32 * MIB, max_total_output_bytes=16 * MIB) as target:
        with target.attack() as run:
            for _ in range(40):
                attacker = run.attacker(settings={SettingsFrame.INITIAL_WINDOW_SIZE: 0}).ready()
                body = framed(good_request(request_id="x" * 10_000))
                attacker.strike(attacker.headers(1, PREDICT_STREAM))
                for _ in range(90):
                    attacker.strike(attacker.data(1, body))
                attacker.ready()
            now = charged(target)
            assert 8 * MIB < now["answers"] <= 17 * MIB
            assert 4 * MIB < now["requests"] <= 33 * MIB
            if not sanitized.BUILD:
                assert target.watch.resident_bytes() - run.base_bytes < sum(now.values()) * 1.1 + 4 * MIB, now
        run.check()
        wait_freed(target)
