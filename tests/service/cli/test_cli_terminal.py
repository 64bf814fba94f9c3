# SPDX-License-Identifier: Apache-2.0
"""What people see on a terminal: the next steps, a progress bar, one line after Ctrl-C, colours only if wanted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fused_mlp.service.cli.failure import ExitCode, fail
from fused_mlp.service.cli.output.rendering import print_table
from tests.service.cli.terminal import Terminal
from tests.support.server import environment

PROGRAM = [sys.executable, "-m", "fused_mlp.service.cli"]
CTRL_C = "\x03"
SLOW_MODULE = """
import threading, torch

def net():
    print("reading now", flush=True)
    threading.Event().wait()
"""


def test_without_arguments_it_shows_three_steps_and_imports_little():
    code = (
        "import sys; sys.argv = ['fused-mlp']\n"
        "from fused_mlp.service.cli import main; main()\n"
        "print('LOADED', sorted({'typer', 'rich', 'grpc', 'numpy', 'torch'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert re.findall(r"^  (\d)  .*fused-mlp (\w+)", run.stdout, re.MULTILINE) == [
        ("1", "serve"),
        ("2", "predict"),
        ("3", "import"),
    ]
    assert "fused-mlp --help" in run.stdout
    assert run.stdout.endswith("LOADED []\n")
    assert "\x1b" not in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 84


def test_text_of_others_commands_no_terminal(capsys: pytest.CaptureFixture[str]):
    """A label may come from a foreign file, and reach whoever predicts with the model."""
    hostile = "a\x1b]0;title\x07 b\x1b[2J\x9b2J\u202e"
    table = Table(hostile)
    table.add_row(Text(hostile), hostile)
    print_table(Group(table, Text(hostile, "bold")))
    with pytest.raises(SystemExit):
        fail(f"model {hostile}")
    shown = "".join(capsys.readouterr())
    assert "a?]0;title? b?[2J?2J?" in shown
    assert not set(shown) & {"\x1b", "\x07", "\x9b", "\u202e"}


@pytest.mark.parametrize("no_colour", [{}, {"NO_COLOR": "1"}])
def test_colours_are_for_terminals_that_want_them(no_colour: dict[str, str]):
    for arguments in ([], ["models", "--target", "127.0.0.1:1"]):
        with Terminal(*PROGRAM, *arguments, env=environment() | no_colour) as terminal:
            terminal.exit_code()
            assert ("\x1b[" in terminal.shown) != bool(no_colour), terminal.shown


def test_a_long_prediction_has_a_bar_and_ctrl_c_leaves_nothing(scripted, tmp_path: Path):
    (tmp_path / "rows.csv").write_text("1,2,3,4\n")
    command = ["predict", "stuck", "-i", "rows.csv", "-o", "y.npy", "--target", scripted.target]
    with Terminal(*PROGRAM, *command, env=environment(), cwd=tmp_path) as terminal:
        terminal.wait_for("rows.csv ")  # the bar
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 130
        assert terminal.shown.rstrip().endswith("interrupted: y.npy was not written")
        assert terminal.shown.count("\x1b[?25l") == terminal.shown.count("\x1b[?25h"), "the cursor is hidden"
    assert os.listdir(tmp_path) == ["rows.csv"]


def test_an_import_has_a_bar_and_ctrl_c_leaves_nothing(tmp_path: Path):
    (tmp_path / "net.py").write_text(SLOW_MODULE)
    command = ["import", "net.py:net", "-r", "repo", "-n", "net"]
    with Terminal(*PROGRAM, *command, env=environment(), cwd=tmp_path) as terminal:
        terminal.wait_for("reading now")
        terminal.wait_for("reading net.py:net")  # the bar
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 130
        assert terminal.shown.rstrip().endswith("interrupted: nothing was imported")
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGHUP, ExitCode.HUNG_UP)],
)
def test_signal_ends_a_command_with_its_exit_code(scripted, number: signal.Signals, code: ExitCode):
    heard = ["env", "--default-signal"]  # under nohup SIGHUP is ignored
    process = subprocess.Popen(
        [*heard, *PROGRAM, "predict", "stuck", "-i", "-", "--target", scripted.target],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    out, err = "", ""
    with process:
        assert process.stdin is not None
        process.stdin.write("1 2 3 4")
        process.stdin.close()
        process.stdin = None
        assert scripted.arrived.wait(60)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "", "interrupted\n")


def test_a_mistake_is_one_line_with_a_hint(cli):
    for arguments, says in (
        (["models", "--jsn"], "No such option: --jsn; did you mean --json? (see fused-mlp models --help)"),
        (["modles"], "No such command 'modles'; did you mean 'models'? (see fused-mlp --help)"),
        (["policy", "gett"], "No such command 'gett'; did you mean get? (see fused-mlp policy --help)"),
        (["load"], "Missing argument 'MODEL' (see fused-mlp load --help)"),
    ):
        outcome = cli(*arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith("error: ")
        assert says.replace("'", "") in outcome.err.replace("'", "")
        assert outcome.err.count("\n") == 1


def test_help_fits_and_shows_no_types(cli):
    from bench.docs.figures.reference import commands

    for name in ["", *commands()]:
        text = cli(*name.split(), "--help").out
        assert max(map(len, text.splitlines())) <= 80, name
        assert not re.search(r"<(bool|float|int)", text), name
        assert "…" not in text, name
