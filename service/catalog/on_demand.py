"""Loads versions when requests ask for them, and unloads those used least recently when there is no room. Owns the
threads, the room and the retries; the catalog owns what is served."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from fused_mlp.kernels.cores import usable_cores
from fused_mlp.models import ModelLoadError
from fused_mlp.service.catalog.records import ServedVersion

MOST_THREADS = 4
# Those that waited for a version find it loaded within this time: their front is told at once.
LEAST_STAY_S = 0.1
MOST_WAIT_FOR_ROOM_S = 5.0
_POLL_S = 0.005
# After a failure, requests for a version are refused for a while, twice as long each time.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

Key = tuple[str, int]  # model, version


class OnDemand:
    """`load` loads one version and publishes it, or publishes why it cannot; it does not raise."""

    def __init__(self, load: Callable[[str, int], None]) -> None:
        self._load = load
        self._pool = ThreadPoolExecutor(min(MOST_THREADS, usable_cores()), "load-on-demand")
        self._lock = threading.Lock()
        self._loading: dict[Key, Future[None]] = {}

    def want(self, model: str, version: int) -> Future[None]:
        """Have it loaded, once for all that ask meanwhile. Returns at once; the future is done when routes say what
        became of it."""
        key = model, version
        with self._lock:
            if (loading := self._loading.get(key)) is not None:
                return loading
            try:
                future = self._loading[key] = self._pool.submit(self._load, *key)
            except RuntimeError:  # stopped
                future = Future()
                future.set_result(None)
                return future
        future.add_done_callback(lambda _: self._forget(key))
        return future

    def _forget(self, key: Key) -> None:
        with self._lock:
            self._loading.pop(key, None)

    def stop(self) -> None:
        """Waits for loads that have begun."""
        self._pool.shutdown(cancel_futures=True)


class Room:
    """How many bytes of kernels may be loaded; None: any number."""

    def __init__(self, most_bytes: int | None) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._taken: dict[Key, int] = {}  # by those that are being loaded

    def take(
        self,
        key: Key,
        size: int,
        loaded: Callable[[], Iterable[ServedVersion]],
        unload: Callable[[ServedVersion], bool],
    ) -> None:
        """Unload what was used least recently until `size` bytes fit, and keep them for `key` until give_back().
        `unload` returns whether it did. Raises ModelLoadError when they cannot fit, or others are in use for too
        long."""
        if self._most_bytes is None:
            return
        if size > self._most_bytes:
            raise ModelLoadError(
                f"it needs {size:,} bytes, more than the {self._most_bytes:,} of FUSED_MLP_MAX_LOADED_BYTES"
            )
        until = time.monotonic() + MOST_WAIT_FOR_ROOM_S
        while not self._try_take(key, size, loaded, unload):
            if time.monotonic() > until:
                raise ModelLoadError(
                    "no room: the models that fill FUSED_MLP_MAX_LOADED_BYTES are in use; retry later"
                )
            time.sleep(_POLL_S)

    def give_back(self, key: Key) -> None:
        with self._lock:
            self._taken.pop(key, None)

    def _try_take(
        self,
        key: Key,
        size: int,
        loaded: Callable[[], Iterable[ServedVersion]],
        unload: Callable[[ServedVersion], bool],
    ) -> bool:
        assert self._most_bytes is not None
        with self._lock:
            others = sum(bytes_ for other, bytes_ in self._taken.items() if other != key)
            versions = [v for v in loaded() if (v.model, v.version) != key]
            excess = sum(v.memory_bytes for v in versions) + others + size - self._most_bytes
            before = time.monotonic_ns() - int(LEAST_STAY_S * 1e9)
            idle = (v for v in versions if v.last_used_ns <= before and not v.in_flight)
            for version in sorted(idle, key=lambda v: v.last_used_ns):
                if excess <= 0:
                    break
                if unload(version):
                    excess -= version.memory_bytes
            if excess > 0:
                return False
            self._taken[key] = size
            return True


def pause_after(failures: int) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))
