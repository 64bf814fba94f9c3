# SPDX-License-Identifier: Apache-2.0
"""Whether this process can still compute. A GPU may fail such that every later call to it fails too, until the process
ends: a kernel that meets that says so here, and whatever supervises the process is told to replace it. Any thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_LOCK = threading.Lock()
_REASONS: list[str] = []
_LISTENERS: list[Callable[[], object]] = []


def report_failure(reason: str) -> None:
    """The first one counts: those after it follow from it."""
    with _LOCK:
        if _REASONS:
            return
        _REASONS.append(reason)
        listeners = list(_LISTENERS)
    log.critical("%s: this process can no longer compute and must be replaced", reason)
    for tell in listeners:
        tell()


def failure() -> str:
    """Why it cannot; empty while it can."""
    return _REASONS[0] if _REASONS else ""


def listen(tell: Callable[[], object]) -> Callable[[], None]:
    """Have `tell` called by the thread that reports a failure. Returns how to stop that."""
    with _LOCK:
        _LISTENERS.append(tell)

    def stop() -> None:
        with _LOCK:
            _LISTENERS.remove(tell)

    return stop
