# SPDX-License-Identifier: Apache-2.0
"""Loads versions when requests ask for them, and unloads those used least recently when there is no room. Owns the
threads, the room and the retries; the catalog owns what is served."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from math import inf

from fused_mlp.kernels import KernelError
from fused_mlp.kernels.cores import usable_cores
from fused_mlp.models import ModelLoadError
from fused_mlp.models.repository.repository import FoundVersion, Repository
from fused_mlp.service.access import audit
from fused_mlp.service.catalog.records import ServedVersion
from fused_mlp.service.catalog.stored_weights import without_path
from fused_mlp.service.catalog.table import ModelTable
from fused_mlp.service.catalog.versions import room
from fused_mlp.service.catalog.versions.loading import NOT_LOADED, Loader, on_demand
from fused_mlp.service.catalog.versions.room import Key, NoRoom, Room, estimated_bytes
from fused_mlp.service.policy.policy import Policy

log = logging.getLogger(__name__)

MAX_THREADS = 4
# After a failure, requests for a version are refused for a while, twice as long each time.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
LOG_UNLOADED_EVERY_S = 60.0
# Fronts ask again every second while a request waits. A load that was not asked for in this time need not begin.
WANTED_FOR_S = 3.0


@dataclass(eq=False)
class _Load:
    """One load that requests wait for, on a thread of the pool or parked until there is room for `size` bytes."""

    key: Key
    wanted_until: float = 0.0
    done: Future[None] = field(default_factory=Future)
    found: FoundVersion | None = None
    size: int = 0
    built_for: Policy | None = None  # the size is that of kernels built for it, not an estimate
    until: float = 0.0  # how long it waits for room


class OnDemand:
    """`notify` gets the names of models that can no longer answer, or can again."""

    def __init__(
        self,
        table: ModelTable,
        loader: Loader,
        repository: Repository,
        *,
        policy: Callable[[str], Policy],
        notify: Callable[[Collection[str]], None],
        max_bytes: int | None,
    ) -> None:
        self._table = table
        self._loader = loader
        self._repository = repository
        self._policy = policy
        self._notify = notify
        self.room = Room(max_bytes, table.loaded, self._unload_idle)
        # Set by the service: the first tells the front that the routes have changed, the second calls back later.
        self.on_loaded: Callable[[], object] = lambda: None
        self.call_later: Callable[[float, Callable[[], object]], object] = lambda _delay, _callback: None
        self._pool = ThreadPoolExecutor(min(MAX_THREADS, usable_cores()), "load-on-demand")
        self._lock = threading.Lock()
        self._loads: dict[Key, _Load] = {}
        # Parked loads hold no thread of the pool, so that loads that fit go on. One thread watches all of them.
        self._parked: list[_Load] = []
        self._waiter: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failures: dict[Key, tuple[int, str]] = {}  # how many in a row, the last reason
        self._unloaded, self._log_unloaded_from = (
            0,
            0.0,
        )  # since the last line about it; under the room's lock
        self.failed_loads: Counter[Key] = Counter()  # since the start; those of reloads too

    def want(self, model: str, version: int, *, patiently: bool = False) -> Future[None]:
        """Loads a version, once for all requests that ask meanwhile. Returns at once; the future is done when the
        routes show the result. `patiently`: the caller does not ask again."""
        key = model, version
        with self._lock:
            before = self._loads.get(key)
            load = before or _Load(key)
            until = inf if patiently else time.monotonic() + WANTED_FOR_S
            load.wanted_until = max(load.wanted_until, until)
            if before is not None:
                return load.done
            self._loads[key] = load
        self._submit(load)
        return load.done

    def forget(self, model: str) -> None:
        """Forgets the failures of a model that was reread or unloaded."""
        for key in [key for key in self._failures.copy() if key[0] == model]:
            self._failures.pop(key, None)

    def stop(self, max_wait_s: float | None = None) -> bool:
        """Starts no further load, and waits for those that run. Returns whether all have ended."""
        with self._lock:
            self._stopping.set()
            waiter = self._waiter
        if waiter is not None:
            waiter.join()
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            begun = [load.done for load in self._loads.values()]
        return not wait(begun, max_wait_s).not_done

    def _submit(self, load: _Load) -> None:
        try:
            running = self._pool.submit(self._load, load)
        except RuntimeError:  # stopped
            self._end(load)
            return
        running.add_done_callback(lambda future: self._end_failed(load, future))

    def _end_failed(self, load: _Load, running: Future[None]) -> None:
        """A load that stays open would keep its callers, and the end of the server, waiting."""
        if not running.cancelled() and (error := running.exception()):
            log.error("the load of %s/%d failed", *load.key, exc_info=error)
        elif not running.cancelled():
            return
        if not load.done.done():
            self._end(load)

    def _end(self, load: _Load) -> None:
        self.room.give_back(load.key)
        with self._lock:
            self._loads.pop(load.key, None)
        load.done.set_result(None)

    def _load(self, load: _Load) -> None:
        """Runs on a thread of the pool. Ends with routes that show the result, unless the load is parked."""
        if load.found is None and time.monotonic() > load.wanted_until:
            self._end(load)  # all callers have given up
            return
        with self._table.lock:
            served = self._find(*load.key)
            if served is not None and served.state != "LOADING":
                loading = replace(served, state="LOADING", reason="still loading", no_room=False)
                self._table.replace(served, loading)
        if served is None or served.weights is None:  # loaded or unloaded meanwhile
            self._end(load)
            return
        load.found = served.weights.found
        try:
            if not self._build(load, load.found, served):
                self._park(load)
                return
            self._failures.pop(load.key, None)
        except Exception as error:
            self._report_failure(load.key, load.found, error)
        self._end(load)
        self.on_loaded()

    def _build(self, load: _Load, found: FoundVersion, served: ServedVersion) -> bool:
        """Builds and publishes the version. False: there is no room now. Raises ModelLoadError, KernelError."""
        name, version = load.key
        policy = self._policy(name)
        if load.built_for != policy:
            assert served.spec is not None
            saved_in = found.model_file.precision if found.model_file else served.precision
            load.size = estimated_bytes(served.spec, saved_in, policy)
        if not self.room.try_take(load.key, load.size, instead_of=load.key):
            return False
        # Reread a version that failed before: it may have been fixed.
        fresh = replace(found, model_file=None) if load.key in self._failures else found
        built = self._loader.load_version(name, fresh, policy)
        published = False
        try:
            if built.state != "READY":
                raise ModelLoadError(built.reason)
            assert served.weights is not None
            assert built.weights is not None
            if served.weights.digest not in (None, built.weights.digest):
                log.warning("%s/%d: its files have changed since it was loaded before", name, version)
            load.size, load.built_for = built.memory_bytes, policy
            if not self.room.try_take(load.key, load.size, instead_of=load.key):
                self.room.give_back(load.key)
                return False
            with self._table.lock:
                current = self._find(name, version, found)
                if current is not None and not built.lacks(self._policy(name)):
                    self._table.replace(current, built)
                    published = True
        finally:
            if not published:
                self._table.release([built])
        # Without a current one it was unloaded, or read again, meanwhile; otherwise the policy has changed.
        return published or current is None or self._build(load, found, served)

    def _park(self, load: _Load) -> None:
        load.until = load.until or time.monotonic() + room.MAX_WAIT_FOR_ROOM_S
        with self._lock:
            stopping = self._stopping.is_set()
            if not stopping:
                self._parked.append(load)
                if self._waiter is None:
                    self._waiter = threading.Thread(target=self._wait_for_room, name="wait-for-room")
                    self._waiter.start()
        if stopping:
            self._end(load)

    def _wait_for_room(self) -> None:
        """On a thread of its own while any load is parked. Polls: nothing tells when the last request of a version is
        answered."""
        while True:
            stopping = self._stopping.wait(room.POLL_S)
            with self._lock:
                parked = list(self._parked)
                if stopping or not parked:
                    self._parked.clear()
                    self._waiter = None
                    break
            loaded = self._table.loaded()  # once for all: there may be thousands of versions
            for load in parked:
                try:
                    if self._goes_on(load, loaded):
                        self._unpark(load)
                        self._submit(load)
                        loaded = self._table.loaded()
                    elif time.monotonic() > load.until:
                        self._unpark(load)
                        assert load.found is not None
                        self._report_failure(load.key, load.found, NoRoom())
                        self._end(load)
                        self.on_loaded()
                except Exception:  # this thread looks after the other loads too
                    log.exception("the load of %s/%d failed", *load.key)
                    self._unpark(load)
                    if not load.done.done():
                        self._end(load)
        for load in parked:
            self._end(load)

    def _unpark(self, load: _Load) -> None:
        with self._lock:
            if load in self._parked:
                self._parked.remove(load)

    def _goes_on(self, load: _Load, loaded: Collection[ServedVersion]) -> bool:
        """Whether there is room now, or the load is no longer needed."""
        if self._find(*load.key, load.found) is None:
            return True
        return self.room.try_take(load.key, load.size, instead_of=load.key, loaded=loaded)

    def _report_failure(self, key: Key, found: FoundVersion, error: Exception) -> None:
        known = isinstance(error, (ModelLoadError, KernelError))
        reason = without_path(self._repository, error) if known else "internal error"
        no_room = isinstance(error, NoRoom)
        count, before = self._failures.get(key, (0, ""))
        count = 0 if no_room else count + 1
        self._failures[key] = count, reason
        self.failed_loads[key] += 1
        pause_s = pause_after(count)
        if reason != before:  # logged once
            log.error("%s/%d cannot be loaded: %s", *key, reason, exc_info=None if known else error)
        with self._table.lock:
            if (current := self._find(*key, found)) is None:
                return
            updated = replace(current, state="UNAVAILABLE", reason=reason, on_demand=no_room, no_room=no_room)
            self._table.replace(current, replace(updated, failed=updated.failed or not no_room))
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
        self._log_unloaded(version)
        return True

    def _log_unloaded(self, version: ServedVersion) -> None:
        """Logs one line per minute: models that do not fit may be unloaded hundreds of times per second."""
        self._unloaded += 1
        now = time.monotonic()
        if now < self._log_unloaded_from:
            return
        arguments = f"used least recently, to make room; {self._unloaded} since the last such line"
        audit.record("evict", model=version.model, version=version.version, arguments=arguments)
        self._unloaded, self._log_unloaded_from = 0, now + LOG_UNLOADED_EVERY_S


def pause_after(failures: int) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(max(failures - 1, 0), 10))
