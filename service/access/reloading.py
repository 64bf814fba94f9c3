# SPDX-License-Identifier: Apache-2.0
"""Files that are read again while the server runs, such as certificates: on SIGHUP, and when they change. What cannot
be used is logged and counted, and what was read before stays in use."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

POLL_S = 2.0  # a few calls of stat
# How long one set of TLS session ticket keys is used: a new context has new ones.
TICKET_KEYS_S = 12 * 3600.0

_Signature = tuple[tuple[int, int, int, int] | None, ...]


class Reload:
    """What was made from some files. `load` makes it again, and raises in one line when it cannot; False: there was
    nothing new in them. `name` is the label of its metric. Used by one thread at a time."""

    def __init__(
        self,
        name: str,
        paths: Iterable[Path | None],
        load: Callable[[], bool | None],
        *,
        at_least_every_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.results = {"ok": 0, "failed": 0}
        self._paths = [path for path in paths if path is not None]
        self._load = load
        self._at_least_every_s = at_least_every_s
        self._clock = clock
        self._loaded_at = clock()
        self._seen = self._signature()

    def poll(self) -> None:
        """Read the files again if they have changed, or if it is time to."""
        due = self._clock() - self._loaded_at >= self._at_least_every_s
        if due or self._signature() != self._seen:
            self.reload()

    def reload(self) -> None:
        # Taken first: a change during the load is a change for the next poll.
        self._seen, self._loaded_at = self._signature(), self._clock()
        try:
            if any(entry and not stat.S_ISREG(entry[0]) for entry in self._seen):
                raise ValueError("not a regular file, which cannot be read twice")
            if self._load() is False:
                return
        except Exception as error:  # whatever it is, the other files are looked at all the same
            self.results["failed"] += 1
            log.error("%s: cannot use the new files, the old ones stay in use: %s", self.name, error)
        else:
            self.results["ok"] += 1
            log.info("%s: read again from %s", self.name, ", ".join(map(str, self._paths)))

    def _signature(self) -> _Signature:
        """Changes with the files, also when a symbolic link on the way points elsewhere, as Kubernetes does it."""
        return tuple(map(_describe, self._paths))


def _describe(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns


async def keep_reloading(reloads: Sequence[Reload], asked: asyncio.Event) -> None:
    """Until cancelled. `asked`: read all of them now, changed or not. Files are read on another thread."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):  # wait_for may lose a cancellation in Python 3.11
                await asked.wait()
        now = asked.is_set()
        asked.clear()
        for item in reloads:
            await asyncio.to_thread(item.reload if now else item.poll)
