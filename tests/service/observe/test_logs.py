# SPDX-License-Identifier: Apache-2.0
"""What peers put into names and ids cannot forge a log line, nor act on the terminal of its reader."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest

from fused_mlp.service.app import _log_kernel_error
from fused_mlp.service.observe.logs import set_up_logging

# Ends of lines, a terminal's escape sequences (also as one C1 character), marks that reorder text, half a character.
HOSTILE = {
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\0": r"\x00",
    "\x1b[2J": r"\x1b[2J",
    "\x9b2J": r"\x9b2J",
    "\x7f": r"\x7f",
    "\x85": r"\x85",
    "\u2028": r"\u2028",
    "\u2029": r"\u2029",
    "\u202e": r"\u202e",
    "\u2066": r"\u2066",
    "\u200f": r"\u200f",
    "\ud800": r"\ud800",
}


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield logging.getLogger("peer")
    root.handlers = handlers
    root.setLevel(level)


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_characters_are_written_as_escapes(
    log: logging.Logger, capsys: pytest.CaptureFixture[str], style: Literal["text", "json"], hostile: str
) -> None:
    set_up_logging(style, "info")
    log.error("model %s is unknown", f"a{hostile}12:00:00 ERROR   forged")
    line = capsys.readouterr().err
    assert hostile not in line.removesuffix("\n")
    assert line.count("\n") == 1
    if style == "text":
        assert line.endswith(f"ERROR   model a{HOSTILE[hostile]}12:00:00 ERROR   forged is unknown\n")
    else:
        assert json.loads(line)["message"] == f"model a{hostile}12:00:00 ERROR   forged is unknown"


def test_names_in_any_language_are_written_as_they_are(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("text", "info")
    log.warning("model %s", "Größe-数字-رقم-🙂")
    assert capsys.readouterr().err.endswith(" WARNING model Größe-数字-رقم-🙂\n")


def test_no_line_of_a_traceback_passes_for_a_log_line(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("text", "info")
    try:
        raise ValueError("no such model: a\n12:00:00 ERROR   forged\x1b[2J")
    except ValueError:
        log.exception("request failed")
    _log_kernel_error("digits/1/fused", "Traceback:\n  File x\nRuntimeError: told to\u2028fail")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith(" ERROR   request failed")
    assert "        raise ValueError" in "\n".join(rest)
    assert r"    12:00:00 ERROR   forged\x1b[2J" in rest
    assert rest[-4].endswith(" ERROR   kernel of digits/1/fused failed")
    assert rest[-3:] == ["    Traceback:", "      File x", r"    RuntimeError: told to\u2028fail"]


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_line_about_a_traced_request_names_its_trace(
    log: logging.Logger, capsys: pytest.CaptureFixture[str], style: Literal["text", "json"]
) -> None:
    set_up_logging(style, "info")
    log.error("request 7 failed", extra={"trace_id": "4bf9"})
    line = capsys.readouterr().err
    if style == "text":
        assert line.endswith(" ERROR   request 7 failed (trace 4bf9)\n")
    else:
        assert json.loads(line)["trace_id"] == "4bf9"
