# SPDX-License-Identifier: Apache-2.0
"""Thousands of outstanding control calls: health and predictions of others do not wait behind them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hyperframe.frame import DataFrame, HeadersFrame

from fused_mlp.protos import fused_mlp_pb2 as fm
from tests.attack.attack_run import ROUNDS, Target
from tests.attack.attacker import request_fields
from tests.attack.good_client import GET_MODEL, HEALTH_CHECK
from tests.support.peer import framed

OUTSTANDING = 8000
# A call that Python answers takes less than 1 ms of it, also on a slow machine.
PYTHON_CALL_S = 1e-3


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Target() as running:
        yield running


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (HEALTH_CHECK, b""),
        (GET_MODEL, fm.GetModelRequest(model="digits").SerializeToString()),
        ("/inference.GRPCInferenceService/ModelStatistics", b""),
    ],
    ids=["health", "model", "statistics"],
)
@pytest.mark.parametrize("connections", [8, 80])
def test_outstanding_control_calls(target: Target, path: str, message: bytes, connections: int) -> None:
    block = request_fields(path.encode())
    calls = OUTSTANDING // connections
    with target.attack() as run:
        attackers = [run.attacker().ready() for _ in range(connections)]
        for turn in range(ROUNDS):
            for attacker in attackers:
                first = 1 + 2 * calls * turn
                frames = []
                for stream in range(first, first + 2 * calls, 2):
                    frames.append(HeadersFrame(stream, block, flags=["END_HEADERS"]))
                    frames.append(DataFrame(stream, framed(message), flags=["END_STREAM"]))
                attacker.strike(*frames)
            for attacker in attackers:
                attacker.ready()
    run.check(most_cpu_s=ROUNDS * OUTSTANDING * PYTHON_CALL_S)
