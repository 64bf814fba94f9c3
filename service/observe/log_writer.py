# SPDX-License-Identifier: Apache-2.0
"""Writes log lines to stderr on its own thread: when the reader of stderr stalls, lines are dropped and counted, and no
thread that logs waits for it."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import deque

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20  # of lines waiting to be written
MAX_WAIT_S = 1.0  # for the last lines, at the end of the process


class LogWriter(logging.Handler):
    """`descriptor`: where to, not a stream: at exit Python would wait for the lock of one that a thread writes to."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.dropped = 0  # lines
        self._reported = 0
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # in _lines, and of the lines being written
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode(errors="replace")
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if self._bytes + len(line) > MAX_BYTES:
                self.dropped += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, but not long for a reader that does not read."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes == 0, MAX_WAIT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                lines = b"".join(self._lines)
                self._lines.clear()
            written = self._write(lines)
            with self._changed:
                self._bytes -= len(lines)
                if not written:
                    self.dropped += lines.count(b"\n")
                dropped = self.dropped - self._reported if written else 0
                self._reported += dropped
                self._changed.notify_all()
            if dropped:
                log.warning("%d log lines were dropped: stderr was not read fast enough", dropped)

    def _write(self, lines: bytes) -> bool:
        rest = memoryview(lines)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process that shares it made it non-blocking
                writable = select.poll()
                writable.register(self._descriptor, select.POLLOUT)
                writable.poll()
            except OSError:  # its reader is gone
                return False
        return True


def dropped_lines() -> int:
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, LogWriter))
