# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, SIGTERM and SIGHUP end a command through its `with` and `finally` blocks, so that no partial file stays. Then
one line says so, and the process ends at once. A second signal ends it without the blocks. `serve` handles signals
itself."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption(KeyboardInterrupt):
    """Its notes say what became of the work."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def raise_on_signals() -> None:
    """Signals that the parent process ignores (nohup) stay ignored."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, lambda number, _: os._exit(128 + number))
    raise Interruption(number)


@contextmanager
def if_interrupted(note: str) -> Iterator[None]:
    """Adds a note to the line that an interrupted command prints."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(note)
        raise


def leave(error: KeyboardInterrupt) -> SystemExit:
    """Prints the line."""
    notes = "; ".join(getattr(error, "__notes__", []))
    print(f"interrupted: {notes}" if notes else "interrupted", file=sys.stderr)
    return SystemExit(getattr(error, "exit_code", 128 + signal.SIGINT))
