# SPDX-License-Identifier: Apache-2.0
"""The lines of a text file, decoded as they are read."""

from __future__ import annotations

import io
import os
import stat
from collections import deque
from collections.abc import Iterator

from fused_mlp.service.cli.rows.source import InputError


class Lines:
    """Iterates over lines with their ends. `number` is that of the line read last, from 1."""

    def __init__(self, name: str, stream: io.BufferedReader) -> None:
        self.number = 0
        self._name = name
        self._stream = stream
        self._waiting: deque[tuple[int, str]] = deque()
        self._bytes = _file_bytes(stream)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._waiting:
            self.number, line = self._waiting.popleft()
            return line
        try:
            # Spreadsheets begin a file with a byte order mark, which utf-8-sig drops.
            line = next(self._stream).decode("utf-8" if self.number else "utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(
                f"{self._name}: expected .npy, .npz, JSON or numbers as UTF-8 text, got other binary data "
                f"after line {self.number}"
            ) from None
        except OSError as error:
            raise InputError(f"{self._name}: {error.strerror or error}") from None
        self.number += 1
        return line

    def next_filled(self) -> str:
        """The next line that holds more than blanks; empty at the end."""
        return next((line for line in self if line.strip()), "")

    def put_back(self, line: str, number: int) -> None:
        """Read this line once more, after those that were put back before."""
        self._waiting.append((number, line))

    def share_read(self) -> float | None:
        """How much of the file was read; None where its size is not known."""
        return self._stream.raw.tell() / self._bytes if self._bytes else None


def _file_bytes(stream: io.BufferedReader) -> int:
    """0 for what is not a regular file."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # not even a file
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
