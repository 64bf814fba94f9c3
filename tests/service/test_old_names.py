# SPDX-License-Identifier: Apache-2.0
"""Settings by their old names: they work, the server says which name to use, and the new name wins."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from fused_mlp.service.settings.limits import Limits
from fused_mlp.service.settings.old_names import OLD_NAMES, RENAMED
from fused_mlp.service.settings.policy import Policy
from fused_mlp.service.settings.settings import Settings, load_settings, unknown_variables
from tests.support.server import COMMAND, Server, environment


def test_every_new_name_exists() -> None:
    names = {
        *Settings.model_fields,
        *(f"limits.{name}" for name in Limits.model_fields),
        *(f"policy.*.{name}" for name in Policy.model_fields),
    }
    assert set(RENAMED.values()) <= names
    assert not set(OLD_NAMES) & Settings.model_fields.keys()


def test_an_old_variable_works_and_names_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_TRANSPORT", "python")
    monkeypatch.setenv("FUSED_MLP_MAX_PINGS_PER_S", "5")
    settings = load_settings()
    assert (settings.front, settings.limits.max_pings_per_s) == ("python", 5)
    assert sorted(settings.warnings) == [
        "FUSED_MLP_MAX_PINGS_PER_S is an old name that will go away: use FUSED_MLP_LIMITS='{\"max_pings_per_s\": 5}'",
        "FUSED_MLP_TRANSPORT is an old name that will go away: use FUSED_MLP_FRONT",
    ]


def test_a_limit_that_never_was_a_setting_is_no_old_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_MAX_CALL_BYTES", "5000000")
    assert load_settings().warnings == (
        "FUSED_MLP_MAX_CALL_BYTES is not a setting; max_call_bytes is a field of FUSED_MLP_LIMITS",
    )


def test_the_new_name_wins_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_ALLOW_ADMIN", "1")
    monkeypatch.setenv("FUSED_MLP_ALLOW_LOAD", "0")
    monkeypatch.setenv("FUSED_MLP_KEEPALIVE_S", "5")
    monkeypatch.setenv("FUSED_MLP_IDLE_TIMEOUT_S", "7")
    monkeypatch.setenv("FUSED_MLP_LIMITS", '{"keepalive_s": 6}')
    settings = load_settings()
    assert not settings.allow_load
    assert (settings.limits.keepalive_s, settings.limits.idle_timeout_s) == (6, 7)
    assert sorted(settings.warnings) == [
        "FUSED_MLP_ALLOW_ADMIN is ignored: FUSED_MLP_ALLOW_LOAD, its new name, is set too",
        "FUSED_MLP_IDLE_TIMEOUT_S is an old name that will go away: use FUSED_MLP_LIMITS='{\"idle_timeout_s\": 7}'",
        "FUSED_MLP_KEEPALIVE_S is ignored: the field keepalive_s of FUSED_MLP_LIMITS, its new name, is set too",
    ]


def test_an_old_option_wins_over_a_new_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_FRONT", "native")
    monkeypatch.setenv("FUSED_MLP_LIMITS", '{"max_connections": 5, "keepalive_s": 6}')
    settings = load_settings(transport="python", max_connections="9")
    assert settings.front == "python"
    assert (settings.limits.max_connections, settings.limits.keepalive_s) == (9, 6)


def test_what_a_mismatch_does_is_part_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_ON_MISMATCH", "unfused")
    monkeypatch.setenv("FUSED_MLP_POLICY", '{"digits": {"split": 0.5}, "*": {"shadow_tolerance": 0.5}}')
    settings = load_settings(shadow_tolerance="0.25")
    for model in ("digits", "other"):
        policy = settings.policy_of(model)
        assert (policy.on_mismatch, policy.shadow_tolerance) == ("unfused", 0.25)
    assert settings.policy_of("digits").split == 0.5
    assert settings.warnings == (
        "FUSED_MLP_ON_MISMATCH is an old name that will go away: use "
        'FUSED_MLP_POLICY=\'{"*": {"on_mismatch": "unfused"}}\'',
        "--shadow-tolerance is an old name that will go away: use "
        '--policy \'{"*": {"shadow_tolerance": 0.25}}\'',
    )


def test_the_cpu_backend_has_its_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_BACKEND", "native")
    settings = load_settings()
    assert settings.backend == "cpu"
    assert settings.warnings == ("FUSED_MLP_BACKEND=native is an old name that will go away: use cpu",)


def test_the_kernel_cache_becomes_tritons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "before")  # and back to what it was when the test ends
    monkeypatch.setenv("FUSED_MLP_KERNEL_CACHE", "/kernels")
    assert load_settings().warnings == (
        "FUSED_MLP_KERNEL_CACHE is an old name that will go away: use TRITON_CACHE_DIR",
    )
    assert os.environ["TRITON_CACHE_DIR"] == "/kernels"


def test_a_removed_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_METRICS", "0")
    assert load_settings().warnings == ("FUSED_MLP_METRICS is ignored: metrics are always recorded",)


def test_old_names_are_not_called_unknown() -> None:
    assert unknown_variables(dict.fromkeys(("FUSED_MLP_TRANSPORT", "FUSED_MLP_METRICS"), "x")) == []
    assert unknown_variables({"FUSED_MLP_FRONTS": "x"}) == [
        "FUSED_MLP_FRONTS is not a setting; did you mean FUSED_MLP_FRONT?"
    ]


def test_a_server_logs_the_old_variables_it_was_given() -> None:
    with Server(transport="python", allow_admin=1, loops=2, front_loops=3) as server:
        assert "(python front)" in server.banner
        log = server.log()
    assert "FUSED_MLP_TRANSPORT is an old name that will go away: use FUSED_MLP_FRONT\n" in log
    assert "FUSED_MLP_ALLOW_ADMIN is an old name that will go away: use FUSED_MLP_ALLOW_LOAD\n" in log
    assert "FUSED_MLP_FRONT_LOOPS is ignored: FUSED_MLP_LOOPS, its new name, is set too\n" in log


def test_a_server_takes_and_logs_old_options() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--transport", "python", "--max-pings-per-s", "5"],
        env=environment(log_format="json"),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    messages = []
    for line in process.stderr:
        messages.append(json.loads(line)["message"])
        if messages[-1].startswith("try "):
            process.terminate()
    assert process.wait(30) == 0
    process.stderr.close()
    assert "--transport is an old name that will go away: use --front" in messages
    assert (
        "--max-pings-per-s is an old name that will go away: use --limits '{\"max_pings_per_s\": 5}'"
        in messages
    )
    assert any("(python front)" in message for message in messages)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--transport", "pigeon"],
            "error: --transport 'pigeon': input should be 'auto', 'native' or 'python'",
        ),
        (["--keepalive-s", "-1"], "error: --keepalive-s '-1': input should be greater than 0"),
        (
            ["--limits", '{"keepalive_s": -1}'],
            "error: --limits.keepalive_s -1: input should be greater than 0",
        ),
    ],
)
def test_a_bad_value_is_named_as_it_was_typed(options: list[str], says: str) -> None:
    run = subprocess.run([*COMMAND, *options], env=environment(), capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr.strip()) == (1, says)


def test_help_shows_only_new_names() -> None:
    run = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=60)
    assert "--limits" in run.stdout
    for old in OLD_NAMES:
        assert f"--{old.replace('_', '-')} " not in run.stdout
