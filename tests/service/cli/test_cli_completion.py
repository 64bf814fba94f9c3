# SPDX-License-Identifier: Apache-2.0
"""What a shell offers: commands, the options of commands that are imported late, and names of models."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.cli.terminal import Terminal
from tests.support.server import environment

PROGRAM = [sys.executable, "-m", "fused_mlp.service.cli"]


def offered(shell: str, *words: str, **env: str) -> list[str]:
    asked = {
        "_FUSED_MLP_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": " ".join(["fused-mlp", *words]),
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_ARGS": " ".join(["fused-mlp", *words]),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    run = subprocess.run(PROGRAM, env=environment() | asked | env, capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
    return run.stdout.split("\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pro"], ["profile"]),
        (["predict", "--va"], ["--variant"]),
        (["policy", "re"], ["reset"]),
        (["policy", "set", "--shadow-"], ["--shadow-arm"]),
        (["serve", "--grpc-p"], ["--grpc-port"]),
        (["nonsense", ""], [""]),
    ],
)
def test_bash_is_offered_commands_and_options(words: list[str], expected: list[str]):
    assert [each for each in offered("bash", *words) if each] == [each for each in expected if each]


def test_zsh_and_fish_are_offered_the_same_with_a_description():
    assert any('"--variant":"' in each for each in offered("zsh", "predict", "--va"))
    assert any(each.startswith("--variant\t") for each in offered("fish", "predict", "--va"))


def test_models_are_asked_for(scripted):
    for words in (["predict", "ti"], ["models", "ti"], ["health", "ti"]):
        assert "tiny" in offered("bash", *words, FUSED_MLP_TARGET=scripted.target)
    assert "tiny" in offered("bash", "predict", "--target", scripted.target, "")


def test_a_server_that_is_away_offers_nothing():
    assert offered("bash", "predict", "", FUSED_MLP_TARGET="127.0.0.1:1") == ["", ""]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_a_line(tmp_path: Path):
    """With the script that --show-completion prints, a bash on a terminal completes a command and an option."""
    wrapper = tmp_path / "fused-mlp"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(PROGRAM)} "$@"\n')
    wrapper.chmod(0o755)
    env = environment() | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PS1": "ready> ",
        "HOME": str(tmp_path),
    }
    with Terminal("bash", "--norc", "--noprofile", "-i", env=env, cwd=tmp_path) as terminal:
        terminal.press('eval "$(fused-mlp --show-completion)"; echo load"ed"\n')
        terminal.wait_for("loaded")
        terminal.press("fused-mlp pol\t")
        terminal.wait_for("policy ")
        terminal.press("set --on-m\t")
        terminal.wait_for("--on-mismatch ")
        terminal.press("\x15exit\n")  # Ctrl-U empties the line
        terminal.exit_code()
