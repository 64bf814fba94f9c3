# SPDX-License-Identifier: Apache-2.0
"""A process and its descendants, from /proc: to add up their CPU time, and to end those that outlive it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 3


def family(pid: int) -> dict[int, str]:
    """The process and its descendants, each with when it was started."""
    found = [pid]
    for each in found:
        with suppress(OSError):  # ended meanwhile
            for task in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, task.read_text().split())
    return {each: when for each in found if (when := _start_time(each))}


def end(started: Mapping[int, str]) -> None:
    """Ends the processes that still run. SIGTERM first: Python's resource tracker waits for the others to end, and then
    removes their semaphores."""
    for step in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + PATIENCE_S
        for pid in _running(started):
            with suppress(ProcessLookupError):
                os.kill(pid, step)
        while _running(started) and time.monotonic() < deadline:
            time.sleep(0.02)


def _running(started: Mapping[int, str]) -> list[int]:
    return [pid for pid, when in started.items() if _start_time(pid) == when]


def _start_time(pid: int) -> str:
    """Tells a process from a later one with the same id; empty when it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else fields[18]
