# SPDX-License-Identifier: Apache-2.0
"""Rereads files while the server runs, such as certificates: on SIGHUP, and when they change. Files that cannot be used
are logged and counted, and the old ones stay in use."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from fused_mlp.models.repository.repository import MAX_SILENCE_S
from fused_mlp.service.access import audit

log = logging.getLogger(__name__)

POLL_S = 2.0  # a few calls of stat
# How long one set of TLS session ticket keys is used: a new context has new ones.
TICKET_KEYS_S = 12 * 3600.0

_Signature = tuple[tuple[int, int, int, int] | None, ...]


class Reload:
    """Files that are reread together. `load` raises in one line if it cannot use them, and returns False if they hold
    nothing new. `name` is the label of its metric. Used by one thread at a time."""

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
        """Rereads the files if they have changed, or if it is time to."""
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
        except Exception as error:  # an error of one must not stop the others
            self.results["failed"] += 1
            log.error("%s: cannot use the new files, the old ones stay in use: %s", self.name, error)
            audit.record("read_files", arguments=self.name, result="FAILED_PRECONDITION", error=str(error))
        else:
            self.results["ok"] += 1
            log.info("%s: read again from %s", self.name, ", ".join(map(str, self._paths)))
            audit.record("read_files", arguments=self.name)

    def _signature(self) -> _Signature:
        """Changes with the files, also when Kubernetes points a symbolic link in their paths elsewhere."""
        return tuple(map(_describe, self._paths))


def _describe(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns


async def keep_reloading(reloads: Sequence[Reload], asked: asyncio.Event) -> None:
    """Runs until cancelled. `asked`: reread all files now, changed or not. Files are read on another thread."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):  # wait_for may lose a cancellation in Python 3.11
                await asked.wait()
        now = asked.is_set()
        asked.clear()
        for item in reloads:
            reading = asyncio.ensure_future(asyncio.to_thread(item.reload if now else item.poll))
            if not (await asyncio.wait([reading], timeout=MAX_SILENCE_S))[0]:
                log.error(
                    "%s: its files have not answered for %g s; no file is read again until they do",
                    item.name,
                    MAX_SILENCE_S,
                )
            await reading
