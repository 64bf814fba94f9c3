# SPDX-License-Identifier: Apache-2.0
"""Serving status by name (the server, its gRPC services, each model), and watchers that are notified of changes.
Lives on the asyncio loop; set() may be called only there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from enum import IntEnum

SERVER = ""


class Serving(IntEnum):
    """As grpc.health.v1.HealthCheckResponse.ServingStatus."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    def __init__(self) -> None:
        self._statuses: dict[str, Serving] = {}
        self._changed = asyncio.Event()
        self._on_change: Callable[[], object] = lambda: None
        self.draining = False
        self._closed = False
        self.failure = ""  # why this process can compute no more

    def set(self, name: str, status: Serving) -> None:
        self.update({name: status})

    def update(self, statuses: Mapping[str, Serving], removed: Iterable[str] = ()) -> None:
        """Once shutdown has begun, or the process has failed, nothing turns healthy again."""
        ended = self.draining or self.failure
        for name, status in statuses.items():
            self._statuses[name] = Serving.NOT_SERVING if ended else status
        for name in removed:
            self._statuses.pop(name, None)
        self._notify()

    def drain(self) -> None:
        self.draining = True
        self._statuses = dict.fromkeys(self._statuses, Serving.NOT_SERVING)
        self._notify()

    def close(self) -> None:
        """Ends the watchers: they must not hold up the exit."""
        self._closed = True
        self._notify()

    def fail(self, reason: str) -> None:
        self.failure = reason
        self.update(dict.fromkeys(self._statuses, Serving.NOT_SERVING))

    def on_change(self, callback: Callable[[], object]) -> None:
        """Called after each change: a front that answers checks by itself is told."""
        self._on_change = callback

    def get(self, name: str) -> Serving | None:
        return self._statuses.get(name)

    def all(self) -> dict[str, Serving]:
        return dict(self._statuses)

    @property
    def ready(self) -> bool:
        return self._statuses.get(SERVER) is Serving.SERVING

    async def watch(self, name: str) -> AsyncIterator[Serving]:
        """The status now, and again whenever it changes."""
        last: Serving | None = None
        while True:
            changed, closed = self._changed, self._closed
            status = self._statuses.get(name, Serving.SERVICE_UNKNOWN)
            if status is not last:
                last = status
                yield status
            if closed:
                return
            await changed.wait()

    def _notify(self) -> None:
        # A fresh event for each change: a watcher holds the one from before it looked, so it misses nothing.
        self._changed.set()
        self._changed = asyncio.Event()
        self._on_change()
