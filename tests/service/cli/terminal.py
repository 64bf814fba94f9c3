# SPDX-License-Identifier: Apache-2.0
"""A program on a terminal of its own, 80 columns wide: what it shows, keys that are pressed, its exit code."""

from __future__ import annotations

import os
import pty
import select
import struct
import time
from collections.abc import Mapping
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Self

PATIENCE_S = 60.0


class Terminal:
    def __init__(self, *command: object, env: Mapping[str, str], cwd: Path | None = None) -> None:
        self.shown = ""
        self._pid, self._screen = pty.fork()
        if self._pid == 0:
            os.chdir(cwd or ".")
            arguments = [str(each) for each in command]
            os.execvpe(arguments[0], arguments, {**env, "TERM": "xterm"})
        ioctl(self._screen, TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < until, self.shown
            assert self._read(1.0), f"ended without {text!r}: {self.shown}"

    def press(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def exit_code(self) -> int:
        """Reads to the end."""
        until = time.monotonic() + PATIENCE_S
        while self._read(1.0):
            assert time.monotonic() < until, self.shown
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self, patience_s: float) -> bool:
        """False at the end."""
        if not select.select([self._screen], [], [], patience_s)[0]:
            return True
        try:
            read = os.read(self._screen, 1 << 16)
        except OSError:  # how Linux tells the end
            return False
        self.shown += read.decode(errors="replace")
        return bool(read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._screen)
