# SPDX-License-Identifier: Apache-2.0
"""FUSED_MLP_LIMITS is one JSON setting whose fields are checked one by one, and reach the front."""

from __future__ import annotations

import subprocess

import grpc
import pytest

from fused_mlp.service.settings.environment import load_settings
from fused_mlp.service.settings.limits import Limits
from fused_mlp.service.settings.settings import SettingsError
from tests.support.fronts import both_fronts
from tests.support.server import COMMAND, Server, environment


def test_fields_not_named_keep_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_LIMITS", '{"max_connections": 5000, "idle_timeout_s": 300}')
    assert load_settings().limits == Limits(max_connections=5000, idle_timeout_s=300)


def test_an_option_wins_over_the_variable_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_LIMITS", '{"max_connections": 5000, "idle_timeout_s": 300}')
    assert load_settings(limits='{"max_connections": 7}').limits == Limits(
        max_connections=7, idle_timeout_s=300
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '{"max_pings_per_s": 0}',
            "FUSED_MLP_LIMITS.max_pings_per_s=0: input should be greater than or equal to 1",
        ),
        ('{"keepalive_s": 0}', "FUSED_MLP_LIMITS.keepalive_s=0: input should be greater than 0"),
        (
            '{"max_connection_age_s": 1e7}',
            "FUSED_MLP_LIMITS.max_connection_age_s=10000000.0: input should be less than or equal to 1728000",
        ),
        ('{"send_timeout_s": NaN}', "FUSED_MLP_LIMITS.send_timeout_s=nan: input should be a finite number"),
        (
            '{"max_ping": 1}',
            "FUSED_MLP_LIMITS.max_ping=1: unknown; expected one of max_request_rows, max_message_b",
        ),
        ("{", "FUSED_MLP_LIMITS='{': invalid JSON at character 2"),
        ("[]", "FUSED_MLP_LIMITS=[]: input should be a valid dictionary"),
    ],
)
def test_errors_name_the_field(monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    monkeypatch.setenv("FUSED_MLP_LIMITS", text)
    with pytest.raises(SettingsError) as failure:
        load_settings()
    assert str(failure.value).startswith(says)
    assert "\n" not in str(failure.value)


@both_fronts
def test_a_limit_reaches_the_front(front: str) -> None:
    with (
        Server(front=front, limits='{"max_message_bytes": 1024}') as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        predict = channel.unary_unary("/fused_mlp.v1.Inference/Predict")
        with pytest.raises(grpc.RpcError) as failure:
            predict(bytes(2000), timeout=30)
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as failure:
            predict(b"", timeout=30)
        assert failure.value.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED


def test_every_field_is_a_limit_of_the_native_front() -> None:
    from fused_mlp.service.fronts.selection import native_front_problem

    if problem := native_front_problem():
        pytest.skip(problem)
    from fused_mlp.service.fronts.native import limits_of

    names = Limits.model_fields.keys() - {"max_request_rows"}  # which is the engine's
    large = {name for name in names if name.endswith("_bytes")} - {
        "max_header_bytes"
    }  # at least 1 MiB for some
    given = {name: (2 << 20 if name in large else 2000) + number for number, name in enumerate(sorted(names))}
    limits = limits_of(load_settings(limits=given), given["max_message_bytes"])
    assert {name: getattr(limits, name) for name in given} == given


def test_a_bad_field_of_an_option_is_named_as_it_was_typed() -> None:
    command = [*COMMAND, "--limits", '{"keepalive_s": -1}']
    run = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    says = "error: --limits.keepalive_s -1: input should be greater than 0"
    assert (run.returncode, run.stderr.strip()) == (1, says)
