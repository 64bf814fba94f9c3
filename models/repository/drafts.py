# SPDX-License-Identifier: Apache-2.0
"""The folder that a version is written into before it gets its name. It is locked meanwhile: the system releases the
lock of a process that is killed, so the next save knows which drafts are abandoned, and removes them."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_NAME = re.compile(r"\..+\.[0-9a-f]{16}\.draft")


@contextmanager
def draft_beside(target: Path, mode: int = 0o777) -> Iterator[Path]:
    """Hidden, so that a repository scan passes over it, and beside the target, so that the rename is atomic. Removed at
    the end, unless it was renamed. Raises OSError."""
    draft = target.parent / f".{target.name}.{os.urandom(8).hex()}.draft"
    target.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with ExitStack() as of_abandoned:
            # The parent's lock: no other process sees the draft before it is locked. Not for longer: a server locks the
            # repository to write its policies.
            with ExitStack() as meanwhile:
                locked = _lock(target.parent, meanwhile)
                abandoned = _lock_abandoned(target.parent, of_abandoned) if locked else []
                draft.mkdir(mode)
                stack.callback(shutil.rmtree, draft, ignore_errors=True)
                _lock(draft, stack)
            for path in abandoned:
                shutil.rmtree(path, ignore_errors=True)
        yield draft


def _lock_abandoned(folder: Path, stack: ExitStack) -> list[Path]:
    return [
        path for path in folder.iterdir() if _NAME.fullmatch(path.name) and _lock(path, stack, fcntl.LOCK_NB)
    ]


def _lock(folder: Path, stack: ExitStack, how: int = 0) -> bool:
    """Until the stack is closed. False: another process holds it, or the file system has no locks."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        return True
    return False
