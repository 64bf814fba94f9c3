"""Loads versions when requests ask for them, and unloads those used least recently when there is no room. Owns the
threads, the room and the retries; the catalog owns what is served."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from fused_mlp.kernels import KernelError
from fused_mlp.kernels.cores import usable_cores
from fused_mlp.models import ModelLoadError
from fused_mlp.models.repository import FoundVersion, Repository
from fused_mlp.service.catalog.building import KernelBuilder
from fused_mlp.service.catalog.loading import NOT_LOADED, Loader, on_demand
from fused_mlp.service.catalog.records import ServedVersion
from fused_mlp.service.catalog.stored_weights import without_path
from fused_mlp.service.catalog.table import ModelTable
from fused_mlp.service.settings.policy import Policy

log = logging.getLogger(__name__)

MOST_THREADS = 4
# A version that has not run yet stays that long: those that waited for it come within this time.
LEAST_STAY_S = 0.1
MOST_WAIT_FOR_ROOM_S = 5.0
_POLL_S = 0.005
# After a failure, requests for a version are refused for a while, twice as long each time.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

Key = tuple[str, int]  # model, version


class OnDemand:
    """`notify` gets the names of models that can no longer answer, or can again."""

    def __init__(
        self,
        table: ModelTable,
        loader: Loader,
        builder: KernelBuilder,
        repository: Repository,
        *,
        policy: Callable[[str], Policy],
        notify: Callable[[Collection[str]], None],
        most_bytes: int | None,
    ) -> None:
        self._table = table
        self._loader = loader
        self._builder = builder
        self._repository = repository
        self._policy = policy
        self._notify = notify
        self.room = Room(most_bytes)
        # Set by the service: what tells the front that the routes have changed, and what calls back later.
        self.on_loaded: Callable[[], object] = lambda: None
        self.call_later: Callable[[float, Callable[[], object]], object] = lambda _delay, _callback: None
        self._pool = ThreadPoolExecutor(min(MOST_THREADS, usable_cores()), "load-on-demand")
        self._lock = threading.Lock()
        self._loading: dict[Key, Future[None]] = {}
        self._failures: dict[Key, tuple[int, str]] = {}  # how many in a row, the last reason
        self._failed_loads: Counter[Key] = Counter()  # since the start

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

    def failed_loads(self) -> dict[Key, int]:
        """Since the start, of models that are served still."""
        return {
            key: count for key, count in self._failed_loads.copy().items() if key[0] in self._table.models
        }

    def _forget(self, key: Key) -> None:
        with self._lock:
            self._loading.pop(key, None)

    def stop(self) -> None:
        """Waits for loads that have begun."""
        self._pool.shutdown(cancel_futures=True)

    def _load(self, name: str, version: int) -> None:
        """On a thread of its own. Ends with routes that say what became of it."""
        key = name, version
        with self._table.lock:
            served = self._find(name, version)
            if served is None or served.weights is None:
                return  # loaded or unloaded meanwhile
            found = served.weights.found
            self._table.replace(served, replace(served, state="LOADING", reason="still loading", no_room=False))
        try:
            self._finish(name, found, self._build(name, found, served))
            self._failures.pop(key, None)
        except Exception as error:
            self._report_failure(key, found, error)
        finally:
            self.room.give_back(key)
            self.on_loaded()

    def _build(self, name: str, found: FoundVersion, served: ServedVersion) -> ServedVersion:
        """Raises ModelLoadError, KernelError."""
        assert served.spec is not None
        policy = self._policy(name)
        key = name, found.version
        self.take_room(key, 4 * served.spec.parameters * len(policy.variants))
        # Read anew what failed before: it may have been mended.
        fresh = replace(found, model_file=None) if key in self._failures else found
        built = self._loader.load_version(name, fresh, policy)
        if built.state != "READY":
            raise ModelLoadError(built.reason)
        assert served.weights is not None
        assert built.weights is not None
        if served.weights.digest not in (None, built.weights.digest):
            log.warning("%s/%d: its files have changed since it was loaded before", *key)
        try:
            self.take_room(key, built.memory_bytes)
        except ModelLoadError:
            self._table.release([built])
            raise
        return built

    def _finish(self, name: str, found: FoundVersion, built: ServedVersion) -> None:
        while True:
            with self._table.lock:
                current = self._find(name, built.version, found)
                policy = self._policy(name)
                if current is not None and not built.lacks(policy):
                    self._table.replace(current, built)
                    return
            if current is None:  # unloaded, or read again, meanwhile
                self._table.release([built])
                return
            try:
                complete = self._builder.complete(built, policy)
            except Exception:
                self._table.release([built])
                raise
            self._table.remove(built.lanes_without(complete))
            built = complete

    def _report_failure(self, key: Key, found: FoundVersion, error: Exception) -> None:
        known = isinstance(error, (ModelLoadError, KernelError))
        reason = without_path(self._repository, error) if known else "internal error"
        no_room = isinstance(error, NoRoom)
        count, before = self._failures.get(key, (0, ""))
        count = 0 if no_room else count + 1
        self._failures[key] = count, reason
        self._failed_loads[key] += 1
        pause_s = pause_after(count)
        if reason != before:  # told once
            log.error("%s/%d cannot be loaded: %s", *key, reason, exc_info=None if known else error)
        with self._table.lock:
            if (current := self._find(*key, found)) is None:
                return
            failed = replace(
                current, state="UNAVAILABLE", reason=reason, on_demand=no_room, no_room=no_room
            )
            self._table.replace(current, failed)
        self._notify([key[0]])
        self.call_later(pause_s, lambda: self._try_again(key, found))

    def _try_again(self, key: Key, found: FoundVersion) -> None:
        """The next request may have it loaded."""
        with self._table.lock:
            model = self._table.models.get(key[0])
            for v in model.versions if model else ():
                if (
                    v.version == key[1]
                    and v.weights is not None
                    and v.weights.found is found
                    and (v.no_room or not v.answers)
                ):
                    reason = NOT_LOADED if v.no_room else v.reason
                    self._table.replace(v, replace(v, on_demand=True, no_room=False, reason=reason))
        self._notify([key[0]])

    def _find(self, name: str, version: int, found: FoundVersion | None = None) -> ServedVersion | None:
        """The version, if it is still to be loaded on demand, from the same files."""
        model = self._table.models.get(name)
        for v in model.versions if model else ():
            if v.version == version and v.on_demand and v.weights is not None:
                return v if found is None or v.weights.found is found else None
        return None

    def take_room(self, key: Key, size: int) -> None:
        self.room.take(key, size, self._table.loaded, self._unload_idle)

    def _unload_idle(self, version: ServedVersion) -> bool:
        """A request that has its lane already is answered on it: a removed lane runs what it is given. A version whose
        fused kernel was found wrong stays, since loading it again would bring that back."""
        if version.fallback is not None and version.fallback.reason == "shadow_mismatch":
            return False
        with self._table.lock:
            model = self._table.models.get(version.model)
            if model is None or version.weights is None or not any(v is version for v in model.versions):
                return False
            self._table.replace(version, on_demand(version, version.weights))
        self._table.release([version])
        log.info("unloaded %s/%d, used least recently, to make room", version.model, version.version)
        return True


class NoRoom(ModelLoadError):
    """The files are right; others are in use."""


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
        `unload` returns whether it did. Raises ModelLoadError when they cannot fit, NoRoom when others are in use
        for too long."""
        if self._most_bytes is None:
            return
        if size > self._most_bytes:
            raise ModelLoadError(
                f"it needs {size:,} bytes, more than the {self._most_bytes:,} of FUSED_MLP_MAX_LOADED_BYTES"
            )
        until = time.monotonic() + MOST_WAIT_FOR_ROOM_S
        while not self._try_take(key, size, loaded, unload):
            if time.monotonic() > until:
                raise NoRoom(
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
            idle = [v for v in versions if (v.has_run or v.loaded_ns <= before) and not v.in_flight]
            if sum(v.memory_bytes for v in idle) < excess:
                return False  # unloading all of them would not help
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
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(max(failures - 1, 0), 10))
