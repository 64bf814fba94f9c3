# SPDX-License-Identifier: Apache-2.0
"""Mistakes that are told before Ray is looked for; the rest is in tests/ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from fused_mlp.service.cli.commands import ray

if TYPE_CHECKING:
    from fused_mlp.service.ray.cluster import Fleet


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "--replicas", "8-2"], "expected a number or a range such as 2-8, from 1 to 1000, got '8-2'"),
        (["up", "--set", "colour=red"], "with a setting of `fused-mlp serve`, got 'colour=red'"),
        (["up", "--set", "max_batch_rows=-1"], "FUSED_MLP_MAX_BATCH_ROWS='-1': input should be"),
        (["up", "--set", "grpc_port=1"], "--set grpc_port: replicas choose and report it themselves"),
    ],
)
def test_a_mistake_is_one_line(cli, arguments, says):
    run = cli("ray", *arguments)
    assert run.code == 1
    assert says in run.err
    assert run.err.count("\n") == 1


class Scripted:
    """A fleet of one ready replica, until there are two: of each status the error that stands in it."""

    def __init__(self, errors: list[str]) -> None:
        self._errors = iter(errors)

    def status(self) -> dict[str, Any]:
        error = next(self._errors, None)
        ready = {"state": "ready", "node": "n"}
        return {"error": error or "", "replicas": [ready] * (2 if error is None else 1)}


def test_up_tells_each_error_once_while_it_waits_for_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "POLL_S", 0)
    ray._wait_for(cast("Fleet", Scripted(["", "no folder", "no folder", "no memory"])), 2)
    text = "1 of 2 replicas are ready, others are tried again: {} (Ctrl-C ends the wait and leaves the fleet running)\n"
    assert capsys.readouterr().err == text.format("no folder") + text.format("no memory")
