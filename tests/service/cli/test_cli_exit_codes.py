# SPDX-License-Identifier: Apache-2.0
"""The exit codes that docs/operations/commands.md lists. 3: test_cli_canary.py; 129 and 143: test_cli_terminal.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fused_mlp.service.ab.live_run import LiveRun
from fused_mlp.service.cli.failure import ExitCode


def test_help_lists_all_codes(cli):
    text = " ".join(cli("--help").out.split())
    assert f"Exit codes: {', '.join(f'{code:d} {code.brief}' for code in ExitCode)}." in text


def test_done_is_0(cli, scripted):
    assert cli("models", target=scripted.target).code == ExitCode.DONE == 0
    assert cli("--help").code == 0


def test_failed_is_1(cli, scripted):
    assert cli("models", "nope", target=scripted.target).code == ExitCode.FAILED == 1
    assert cli("models", target="127.0.0.1:1").code == 1


@pytest.mark.parametrize(
    "command", ["models --nope", "nope", "load", "predict m", "pin m x", "policy", "canary m", "profile"]
)
def test_wrong_options_are_2(cli, command: str):
    assert cli(*command.split()).code == ExitCode.USAGE == 2


def test_figures_that_are_not_valid_are_4(cli, server, monkeypatch: pytest.MonkeyPatch):
    run = LiveRun.run
    monkeypatch.setattr(
        LiveRun, "run", lambda self, progress: replace(run(self, progress), problems=("too busy",))
    )
    outcome = cli("ab", "digits", "--duration", 2, "--rate", 20, target=server.target)
    assert (outcome.code, ExitCode.NOT_VALID) == (4, 4), outcome.err
    assert "Not valid" in outcome.out


def test_ctrl_c_is_130(cli, monkeypatch: pytest.MonkeyPatch, scripted):
    from fused_mlp.service.client import Client

    def interrupted(self: Client) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "models", interrupted)
    outcome = cli("models", target=scripted.target)
    assert (outcome.code, outcome.out, outcome.err) == (ExitCode.INTERRUPTED, "", "interrupted\n")
