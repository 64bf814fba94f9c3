# SPDX-License-Identifier: Apache-2.0
"""Follows the repository while the server runs: on SIGHUP, every few seconds, or when the file system tells of changes.
Its task is on the service's loop; files are looked at on a thread, and versions are loaded on one of low priority."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from fused_mlp.kernels import KernelError
from fused_mlp.models import ModelLoadError
from fused_mlp.models.repository.repository import MAX_SILENCE_S
from fused_mlp.service import _engine
from fused_mlp.service.access import audit
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedVersion
from fused_mlp.service.errors import ModelNotFound, ServiceError
from fused_mlp.service.reload.changes import Change, Changes
from fused_mlp.service.reload.retries import Retries
from fused_mlp.service.settings.settings import Settings, SettingsError
from fused_mlp.service.stores.mirror import Mirror
from fused_mlp.service.stores.places import Places

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")
_MIN_PAUSE_S = 0.1
RETRY_LOOK_S = 1.0
MAX_SILENCE_AT_LOAD_S = 5.0  # clients give up after 10 s


class Reloader:
    """`on_problems`: called when other things than before could not be read or fetched."""

    def __init__(self, settings: Settings, catalog: Catalog, places: Places) -> None:
        self._settings = settings
        self._catalog = catalog
        self._places = places
        self.on_problems: Callable[[], object] = lambda: None
        self._problems: list[list[str]] = []
        self._look = asyncio.Event()
        self._watch_again = asyncio.Event()  # a folder that was away is another one when it comes back
        self._fetches = {mirror: asyncio.Event() for mirror in places.mirrors}  # set: one is asked for
        self._awaited: dict[Mirror, asyncio.Future[None]] = {}  # the next fetch, not one that goes on
        self._first_fetches: dict[Mirror, asyncio.Future[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._watches = True  # if that is asked for
        self._retries = Retries(catalog.failed)
        self._begun: set[Future[Any]] = set()  # on these threads
        # Their threads are started when they are needed: loads are one at a time, beside fetching from each store and
        # looking, which takes long where a share does not answer.
        self._low_priority, self._fetching, self._looking = self._pools = [
            ThreadPoolExecutor(threads, name, initializer=_engine.lower_thread_priority)
            for name, threads in (("reload", 1), ("fetch", len(places.mirrors) or 1), ("look", 1))
        ]

    @property
    def on(self) -> bool:
        return self._settings.reload != "off"

    def prepare(self) -> None:
        """Before the catalog scans the repository. Raises SettingsError."""
        if self._settings.reload == "watch" and find_spec("watchfiles") is None:
            raise SettingsError(
                "FUSED_MLP_RELOAD=watch needs watchfiles, which is not installed: pip install 'fused-mlp[watch]'; "
                "or take poll"
            )
        self._places.recover()

    async def fetch_first(self) -> None:
        """Fetches stores for the first time, before the catalog scans them. Does not wait for a store that makes no
        progress if another repository can be read."""
        for mirror in self._places.never_fetched:
            self._first_fetches[mirror] = asyncio.ensure_future(self._run(self._fetching, mirror.synchronise))
        waits = dict(self._first_fetches)
        while waits:
            await asyncio.wait(waits.values(), timeout=_MIN_PAUSE_S)
            now = time.monotonic()
            waits = {mirror: fetch for mirror, fetch in waits.items() if not fetch.done()}
            silent = [mirror for mirror in waits if now - mirror.progress_at > MAX_SILENCE_S]
            others = await asyncio.to_thread(self._catalog.repository.look) if silent else {}
            for mirror in silent if others else ():
                text = "%s has not answered for %g s: the start goes on without it"
                log.error(text, mirror.shown, MAX_SILENCE_S)
                del waits[mirror]

    def start(self) -> None:
        """Once all models are loaded; on the service's loop."""
        self._tasks = [asyncio.ensure_future(self._keep_retrying())]
        if not self.on and not self._fetches:
            return
        loop = asyncio.get_running_loop()
        changes = Changes(
            self._catalog.repository, self._settings.reload_settle_s, self._catalog.served_versions
        )
        self._tasks.append(loop.create_task(self._keep_following(changes)))
        self._tasks += [loop.create_task(self._keep_fetching(mirror)) for mirror in self._fetches]
        if self._settings.reload == "watch":
            self._tasks.append(loop.create_task(self._keep_watching()))

    def ask(self) -> None:
        """Has the repository read now."""
        for event in (self._look, *self._fetches.values()):
            event.set()

    async def stop(self) -> None:
        """Starts no further load; one that runs goes on."""
        tasks = [*self._tasks, *self._first_fetches.values(), *self._awaited.values()]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        self._places.stop()
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)

    async def ended(self, max_wait_s: float) -> bool:
        """Waits for running loads. Returns whether all have ended."""
        return not (await asyncio.to_thread(wait, self._begun, max_wait_s)).not_done

    def close(self) -> None:
        """Waits for a load that has begun."""
        self._places.stop()
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    async def run(self, load: Callable[..., _Answer], *arguments: object) -> _Answer:
        """A change that loads versions, on the thread of low priority."""
        return await self._run(self._low_priority, load, *arguments)

    async def fetch(self, model: str) -> str:
        """Fetches a model from the stores that may have it, before it is loaded. Returns why a store could not be read,
        else an empty text. Raises ModelLoadError for an invalid name."""
        mirrors = await asyncio.to_thread(self._places.mirrors_of, model)
        if not self._tasks:  # the start fetches, or the end has begun
            return ""
        began, waits = time.monotonic(), {}
        for mirror in mirrors:
            waits[mirror] = self._awaited.setdefault(mirror, asyncio.get_running_loop().create_future())
            self._fetches[mirror].set()
        problems = []
        for mirror, fetched in waits.items():
            while not fetched.done():
                silent_s = time.monotonic() - max(began, mirror.progress_at)
                if silent_s > MAX_SILENCE_AT_LOAD_S:
                    problems.append(f"{mirror.shown} has not answered for {silent_s:.0f} s")
                    break
                await asyncio.wait([fetched], timeout=_MIN_PAUSE_S)
            if fetched.done() and mirror.unread:
                problems.append(f"{mirror.shown}: {mirror.unread}")
        if problems:
            log.warning("%s is loaded from what was fetched before: %s", model, "; ".join(problems))
        return "; ".join(problems)

    async def _run(
        self, pool: ThreadPoolExecutor, call: Callable[..., _Answer], *arguments: object
    ) -> _Answer:
        begun = pool.submit(call, *arguments)
        self._begun.add(begun)
        begun.add_done_callback(self._begun.discard)
        return await asyncio.wrap_future(begun)

    async def _keep_fetching(self, mirror: Mirror) -> None:
        asked, fetch = self._fetches[mirror], self._first_fetches.pop(mirror, None)
        follows = True  # where nothing is followed, until what was there at the start is here
        while True:
            awaited = None if fetch else self._awaited.pop(mirror, None)
            try:
                await (fetch or self._run(self._fetching, partial(mirror.synchronise, insist=bool(awaited))))
            finally:
                if awaited is not None and not awaited.done():
                    awaited.set_result(None)
            fetch = None
            self._report_problems()
            if follows:
                self._look.set()
            follows = self.on or (follows and bool(mirror.problems))
            polls = self._settings.reload.startswith(("poll", "watch")) or mirror.empty
            pauses = [self._settings.reload_interval_s] if polls else []
            if follows and mirror.retry_in_s is not None:
                pauses.append(mirror.retry_in_s)
            await _wait(asked, min(pauses, default=None))

    async def _keep_following(self, changes: Changes) -> None:
        while True:
            await _wait(self._look, self._pause_s(changes))
            try:
                found = await self._find(changes)
                self._report_problems()
                for change in found:
                    await self._follow(changes, change)
            except Exception:
                log.exception("the repository could not be read")

    async def _find(self, changes: Changes) -> list[Change]:
        """Logs a share that does not answer: until it does, no version is loaded and no other problem is found."""
        look = asyncio.ensure_future(self._run(self._looking, lambda: list(changes.find())))
        if not (await asyncio.wait([look], timeout=MAX_SILENCE_S + _MIN_PAUSE_S))[0]:
            self._report_problems()
            for problem in (problem for problems in self._problems for problem in problems):
                log.error("%s: new versions are not loaded until it does; what is served stays", problem)
        return await look

    def _report_problems(self) -> None:
        problems = [part.problems for part in self._catalog.repository.parts]
        if problems != self._problems:
            self._problems = problems
            self._watch_again.set()
            self.on_problems()

    def _pause_s(self, changes: Changes) -> float | None:
        """Until the next look, unless one is asked for."""
        how = self._settings.reload
        polls = how.startswith("poll") or (how == "watch" and not self._watches)
        polls |= self.on and any(self._problems)
        pause = self._settings.reload_interval_s if polls else None
        if changes.waiting:
            soon = max(self._settings.reload_settle_s / 4, _MIN_PAUSE_S)
            return soon if pause is None else min(pause, soon)
        return pause

    async def _follow(self, changes: Changes, change: Change) -> None:
        await self._apply(change.model, partial(self._catalog.refresh, change.model, change.held))
        changes.done(change)

    async def _apply(self, model: str, load: Callable[[], None]) -> None:
        """An error of one model does not stop the others."""
        before = self._served(model)
        try:
            await self.run(load)
        except (ModelLoadError, KernelError, ServiceError) as error:
            log.error("%s: keeping the current version: %s", model, error)
        except Exception as error:
            log.exception("%s: keeping the current version: %s", model, error)
        _record_changes(model, before, self._served(model))

    async def _keep_retrying(self) -> None:
        while True:
            await asyncio.sleep(RETRY_LOOK_S)
            for model in self._retries.due():
                await self._apply(model, partial(self._catalog.retry, model))

    def _served(self, model: str) -> dict[int, ServedVersion]:
        with suppress(ModelNotFound):
            return {v.version: v for v in self._catalog.get(model).versions}
        return {}

    async def _keep_watching(self) -> None:
        """Polls if the system cannot watch: all its watches are in use, or a file system has none."""
        try:
            while True:
                self._watch_again.clear()
                await self._watch()
        except Exception as error:
            log.warning("the repository cannot be watched and is polled instead: %s", error)
            self._watches = False
            self._look.set()

    async def _watch(self) -> None:
        from watchfiles import awatch  # noqa: PLC0415 - an extra

        roots, looked = self._catalog.repository.roots, False
        options = {
            "watch_filter": None,
            "rust_timeout": 500,
            "yield_on_timeout": True,
            "stop_event": self._watch_again,
        }
        async for changes in awatch(*roots, **options):
            # The first time also without one: it may have come before the watch began.
            if changes or not looked:
                self._look.set()
            looked = True


def _record_changes(model: str, before: dict[int, ServedVersion], after: dict[int, ServedVersion]) -> None:
    for number in sorted(before.keys() - after.keys()):
        audit.record("retire", model=model, version=number)
    for number, new in after.items():
        old = before.get(number)
        if old is None or (old.state, old.signature) != (new.state, new.signature):
            result = "OK" if new.answers else "UNAVAILABLE"
            audit.record("load", model=model, version=number, result=result, error=new.reason)


async def _wait(event: asyncio.Event, max_s: float | None) -> None:
    # asyncio.wait_for would lose a cancellation that comes as the event is set, in Python 3.11.
    with suppress(TimeoutError):
        async with asyncio.timeout(max_s):
            await event.wait()
    event.clear()
