# SPDX-License-Identifier: Apache-2.0
"""Files that several processes of one machine read and replace."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_WAIT_S = 5.0  # for another process, which holds the lock for one write
_POLL_S = 0.01


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Excludes other processes that change the file. The lock is on its folder, because the file itself is replaced.
    Raises OSError."""
    folder = path.resolve().parent
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    give_up = time.monotonic() + MAX_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{folder}: another process holds its lock") from None
            time.sleep(_POLL_S)
        except OSError:
            return  # a network file system that cannot lock folders


def replace_file(path: Path, text: str, mode: int) -> None:
    """In one step: a reader, and a start after a power failure, finds the old file or the new one. Follows symbolic
    links. Raises OSError."""
    target = path.resolve()
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # has mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
