# SPDX-License-Identifier: Apache-2.0
"""One host with many connections, each within the limits of a connection: what they hold together is the share of one
address, and another host notices nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hyperframe.frame import HeadersFrame

from fused_mlp.protos import fused_mlp_pb2 as fm
from tests.attack.attack_run import ROUNDS, SECONDS, SMALL_BUDGETS, Target
from tests.attack.attacker import ATTACKER_HOST, Attacker, request_fields
from tests.attack.good_client import DEADLINE_S, channel
from tests.support.peer import PREDICT, PREDICT_STREAM, framed

CONNECTIONS = 120 * ROUNDS
WATCH = "/grpc.health.v1.Health/Watch"
# A call that Python answers takes less than 1 ms of it, also on a slow machine.
PYTHON_CALL_S = 1e-3


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Target(**SMALL_BUDGETS) as running:
        yield running


def open_calls(attacker: Attacker, path: str, count: int, body: bytes | None, *, end: bool) -> None:
    fields = request_fields(path.encode())
    frames = []
    for stream in range(1, 2 * count, 2):
        frames.append(HeadersFrame(stream, fields, flags=["END_HEADERS"]))
        if body is not None:
            frames.append(attacker.data(stream, body, end=end))
    attacker.strike(*frames)


# More than the budget holds, on each connection less than what the ones before have left of it.
@pytest.mark.parametrize(
    ("path", "calls", "body", "account"),
    [(PREDICT_STREAM, 100, None, "calls"), (WATCH, 8, framed(b""), "control")],
    ids=["calls", "control"],
)
def test_open_streams_of_one_host(
    target: Target, path: str, calls: int, body: bytes | None, account: str
) -> None:
    """Streams that never end, on 120 connections."""
    with target.attack() as run:
        for _ in range(CONNECTIONS):
            open_calls(run.attacker().ready(), path, calls, body, end=True)
        for attacker in run.attackers:
            attacker.ready()
        refused = target.server.metric("fused_mlp_front_memory_refusals_total", account=account)
    run.check(most_cpu_s=CONNECTIONS * calls * PYTHON_CALL_S)
    assert refused > 0
    assert f"refused a call of {ATTACKER_HOST}" in target.server.log()


@pytest.mark.parametrize("piece", [1, 8 << 10], ids=lambda size: f"{size} bytes")
def test_unfinished_messages_of_one_host(target: Target, piece: int) -> None:
    """Each call sends the beginning of a message. Another host's messages in pieces still have room."""
    begun = framed(bytes(1 << 20))[: 5 + piece]
    tensor = fm.Tensor(shape=[1000, 64], data=bytes(1000 * 256))
    request = fm.PredictRequest(model="digits", input=tensor).SerializeToString()
    with target.attack() as run, channel(target.server.target, "") as good:
        for _ in range(CONNECTIONS):
            open_calls(run.attacker().ready(), PREDICT, 40, begun, end=False)
        for attacker in run.attackers:
            attacker.ready()
        for _ in range(20):
            good.unary_unary(PREDICT)(request, timeout=DEADLINE_S)
    run.check(most_cpu_s=10 * SECONDS)
