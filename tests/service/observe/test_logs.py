# SPDX-License-Identifier: Apache-2.0
"""What peers put into names and ids cannot forge a log line, nor act on the terminal of its reader."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import pytest

from fused_mlp.service.app import _log_kernel_error
from fused_mlp.service.observe import logs
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


def written(capfd: pytest.CaptureFixture[str]) -> str:
    logging.getLogger().handlers[0].flush()  # a thread writes
    return capfd.readouterr().err


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
    log: logging.Logger, capfd: pytest.CaptureFixture[str], style: Literal["text", "json"], hostile: str
) -> None:
    set_up_logging(style, "info")
    log.error("model %s is unknown", f"a{hostile}12:00:00 ERROR   forged")
    line = written(capfd)
    assert hostile not in line.removesuffix("\n")
    assert line.count("\n") == 1
    if style == "text":
        assert line.endswith(f"ERROR   model a{HOSTILE[hostile]}12:00:00 ERROR   forged is unknown\n")
    else:
        assert json.loads(line)["message"] == f"model a{hostile}12:00:00 ERROR   forged is unknown"


def test_a_line_begins_with_date_and_time(log: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging("text", "info")
    before = datetime.now().replace(microsecond=0)
    log.warning("a model")
    told = datetime.strptime(written(capfd)[:19], "%Y-%m-%d %H:%M:%S")
    assert before <= told <= datetime.now()


def test_names_in_any_language_are_written_as_they_are(
    log: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("text", "info")
    log.warning("model %s", "Größe-数字-رقم-🙂")
    assert written(capfd).endswith(" WARNING model Größe-数字-رقم-🙂\n")


def test_no_line_of_a_traceback_passes_for_a_log_line(
    log: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("text", "info")
    try:
        raise ValueError("no such model: a\n12:00:00 ERROR   forged\x1b[2J")
    except ValueError:
        log.exception("request failed")
    _log_kernel_error("digits/1/fused", "Traceback:\n  File x\nRuntimeError: told to\u2028fail")
    first, *rest = written(capfd).splitlines()
    assert first.endswith(" ERROR   request failed")
    assert "        raise ValueError" in "\n".join(rest)
    assert r"    12:00:00 ERROR   forged\x1b[2J" in rest
    assert rest[-4].endswith(" ERROR   kernel of digits/1/fused failed")
    assert rest[-3:] == ["    Traceback:", "      File x", r"    RuntimeError: told to\u2028fail"]


def test_a_failure_over_and_over_has_one_traceback_and_a_line_each(
    log: logging.Logger, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    set_up_logging("text", "info")

    def fail(error: Exception) -> None:
        log.error("call %s failed", "7", exc_info=error)

    for _ in range(20):
        fail(ValueError("told to"))
    fail(KeyError("another kind"))
    first = written(capfd)
    assert first.count("call 7 failed") == 21
    assert first.count("ValueError: told to") == first.count("KeyError: 'another kind'") == 1
    now[0] += logs.TRACEBACK_EVERY_S
    fail(ValueError("told to"))
    second = written(capfd)
    assert "call 7 failed (19 more tracebacks like this one were left out)" in second
    assert second.count("ValueError: told to") == 1


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_line_about_a_traced_request_names_its_trace(
    log: logging.Logger, capfd: pytest.CaptureFixture[str], style: Literal["text", "json"]
) -> None:
    set_up_logging(style, "info")
    log.error("request 7 failed", extra={"trace_id": "4bf9"})
    line = written(capfd)
    if style == "text":
        assert line.endswith(" ERROR   request 7 failed (trace 4bf9)\n")
    else:
        assert json.loads(line)["trace_id"] == "4bf9"


def test_a_lack_of_memory_is_one_line_however_many_requests_fail(
    log: logging.Logger, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    set_up_logging("text", "info")

    def fail() -> None:
        log.error("request %s failed: %s", "7", "out of memory")  # the native front
        log.error("request 8 failed", exc_info=MemoryError())  # a handler
        _log_kernel_error("digits/1/fused", "CPU kernel: std::bad_alloc (code 1)")

    for _ in range(100):
        fail()
    log.error("request 9 failed: %s", "told to")
    lines = written(capfd).splitlines()
    assert [line[20:] for line in lines] == [
        "ERROR   request 7 failed: out of memory",
        "ERROR   request 9 failed: told to",
    ]
    now[0] += logs.TRACEBACK_EVERY_S
    fail()
    assert "out of memory (299 more lines about a lack of memory were left out)" in written(capfd)
