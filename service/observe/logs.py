# SPDX-License-Identifier: Apache-2.0
"""Log lines for people (text) or for machines (json), on stderr. Set up once, at start. Names, metadata and ids come
from peers: nothing that a terminal acts on, or that looks like another line, is written as it came."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Literal

# Control characters (escape sequences, ends of lines), line separators, marks that reorder text, lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class _Text(logging.Formatter):
    """One line; a traceback follows indented, so that none of its lines passes for a log line."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [
            f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} "
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
        if traceback := _traceback(self, record):
            line["exception"] = traceback
        # Outside of strings there are none of these.
        return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False))


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Of `exc_info`, or the text that was given as `extra={"traceback": ...}`."""
    if record.exc_info:
        return formatter.formatException(record.exc_info)
    return str(getattr(record, "traceback", ""))


def _trace(record: logging.LogRecord) -> str:
    """Of a request that came with a traceparent: `extra={"trace_id": ...}`."""
    trace_id = getattr(record, "trace_id", "")
    return f" (trace {trace_id})" if trace_id else ""


def set_up_logging(style: Literal["text", "json"], level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Text())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
