# SPDX-License-Identifier: Apache-2.0
"""Log lines for people (text) or for machines (json), on stderr. Set up once, at start. Names, metadata and ids come
from peers: characters that control a terminal or start a new line are escaped."""

from __future__ import annotations

import json
import logging
import re
import time
from math import inf
from typing import Literal

from fused_mlp.service.observe.log_writer import LogWriter

# Control characters (escape sequences, ends of lines), line separators, marks that reorder text, lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
STDERR = 2
TRACEBACK_EVERY_S = 10.0
OUT_OF_MEMORY = "out of memory"  # the front's and the engine's words for it


class _Text(logging.Formatter):
    """One line; a traceback follows indented, so that none of its lines passes for a log line."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [
            f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')} {record.levelname:<7} "
            f"{_escape(record.getMessage())}{_trace(record)}"
        ]
        lines += [f"    {_escape(line)}" for line in _traceback(self, record).split("\n") if line]
        return "\n".join(lines)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace_id := getattr(record, "trace_id", ""):
            line["trace_id"] = trace_id
        if audit := getattr(record, "audit", None):  # see access/audit.py
            line["audit"] = audit
        if traceback := _traceback(self, record):
            line["exception"] = traceback
        # Outside of strings there are none of these.
        return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False))


class _FewTracebacks(logging.Filter):
    """Lets one traceback of a kind through in TRACEBACK_EVERY_S: a peer that makes requests fail must not fill a disk.
    Each failure keeps its line, which has the request's id. A kind is the logging line and the type of the error.
    Requests that fail for lack of memory share one line in that time: all of them do, and logging takes memory."""

    def __init__(self) -> None:
        super().__init__()
        # Per kind: when its last traceback was let through, and how many were left out since.
        self._kinds: dict[tuple[str, int, type | None], tuple[float, int]] = {}
        self._no_memory: tuple[float, int] = (-inf, 0)  # the same of lines

    def filter(self, record: logging.LogRecord) -> bool:
        if _is_out_of_memory(record):
            last, left_out = self._no_memory
            if (now := time.monotonic()) - last < TRACEBACK_EVERY_S:
                self._no_memory = last, left_out + 1
                return False
            self._no_memory = now, 0
            if left_out:
                record.msg = f"{record.msg} ({left_out} more lines about a lack of memory were left out)"
        if record.exc_info or getattr(record, "traceback", None):
            kind = record.pathname, record.lineno, record.exc_info[0] if record.exc_info else None
            last, left_out = self._kinds.get(kind, (-inf, 0))
            if (now := time.monotonic()) - last < TRACEBACK_EVERY_S:
                self._kinds[kind] = last, left_out + 1
                record.exc_info = record.exc_text = record.traceback = None
            else:
                self._kinds[kind] = now, 0
                if left_out:
                    record.msg = f"{record.msg} ({left_out} more tracebacks like this one were left out)"
        return True


def _is_out_of_memory(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    if kind is not None and issubclass(kind, MemoryError):
        return True
    return any(
        str(value) == OUT_OF_MEMORY or "std::bad_alloc" in str(value)
        for value in (
            *(record.args if isinstance(record.args, tuple) else ()),
            getattr(record, "traceback", ""),
        )
        if isinstance(value, str | Exception)
    )


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback of `exc_info`, or the text given as `extra={"traceback": ...}`."""
    if record.exc_info:
        return formatter.formatException(record.exc_info)
    return str(getattr(record, "traceback", None) or "")


def _trace(record: logging.LogRecord) -> str:
    """The trace id of a request that came with a traceparent: `extra={"trace_id": ...}`."""
    trace_id = getattr(record, "trace_id", "")
    return f" (trace {trace_id})" if trace_id else ""


def set_up_logging(style: Literal["text", "json"], level: str) -> None:
    handler = LogWriter(STDERR)
    handler.setFormatter(_Json() if style == "json" else _Text())
    handler.addFilter(_FewTracebacks())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
