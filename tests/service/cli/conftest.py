# SPDX-License-Identifier: Apache-2.0
"""Runs the command line in this process, as wide as a terminal of 80 columns."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from fused_mlp.service.cli.program import app


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch):
    """cli("predict", "tiny", "--example", stdin=..., target=...) -> Outcome. An unexpected exception fails the test."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")

    def run(*args: object, stdin: str | bytes = "", target: str | None = None) -> Outcome:
        env = {} if target is None else {"FUSED_MLP_TARGET": target}
        root = logging.getLogger()
        handlers, level = root.handlers, root.level
        result = CliRunner().invoke(
            app, [str(arg) for arg in args], input=stdin, env=env, prog_name="fused-mlp"
        )
        # A command that serves logs to the runner's own stderr, which is closed now.
        root.handlers = handlers
        root.setLevel(level)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run
