"""Mistakes that are told before Ray is looked for; the rest is in tests/ray."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "--replicas", "8-2"], "expected a number or a range such as 2-8, from 1 to 1000, got '8-2'"),
        (["up", "--set", "colour=red"], "with a setting of `fused-mlp serve`, got 'colour=red'"),
        (["up", "--set", "max_batch_rows=-1"], "FUSED_MLP_MAX_BATCH_ROWS='-1': input should be"),
        (["up", "--set", "grpc_port=1"], "--set grpc_port: replicas choose it themselves"),
    ],
)
def test_a_mistake_is_one_line(cli, arguments, says):
    run = cli("ray", *arguments)
    assert run.code == 1
    assert says in run.err
    assert run.err.count("\n") == 1
