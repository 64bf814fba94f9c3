# SPDX-License-Identifier: Apache-2.0
"""A folder that mirrors a store, version by version: each version is fetched beside its place, checked, and renamed
into it. The folder keeps its contents when the store is unreachable. Several servers may share the folder: they fetch
side by side, and one at a time changes the contents. Runs on a thread that may block."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fused_mlp.models import ModelLoadError
from fused_mlp.models.repository.checksums import SUM_SUFFIX, check_sum
from fused_mlp.models.repository.repository import VERSION
from fused_mlp.models.repository.version_directory import JSON_NAME, inspect_version
from fused_mlp.service.stores.listing import RemoteFile, Version, list_versions, open_store

log = logging.getLogger(__name__)

SOURCE_NAME = ".source.json"  # the source of a version
DRAFT, OLD = ".draft", ".old"
CHUNK_BYTES = 1 << 20
LOG_EVERY_S = 5.0
LOCK_NAME, LOCK_POLL_S = ".lock", 0.02
MAX_LOCKED_S = 10.0  # by another server, which renames and removes under the lock but never waits for a store
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0

Key = tuple[str, int]


def without_password(urls: str) -> str:
    """For people and logs: without a password."""
    return re.sub(r"//[^/@,]*@", "//", urls)


class Mirror:
    """`single`: the name of a model whose files may lie at the root of the store."""

    def __init__(
        self, url: str, cache: Path, *, single: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self.shown = without_password(url)
        self.folder = cache / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
        self._single = single
        self._clock = clock
        # By version, or None for the store itself: consecutive failures, the time of the next try, the last reason.
        self._failures: dict[Key | None, tuple[int, float, str]] = {}
        self._changing = threading.Lock()
        self._odd: set[Path] = set()  # already logged
        self.failed = 0  # since the start
        self.fetching = ""  # the current version and its progress
        self.progress_at = clock()
        self.stopping = False  # set by the thread that waits for the end of a fetch

    def recover(self) -> None:
        """Recovers from a killed process: removes its drafts, and restores a version that was about to be replaced."""
        with suppress(OSError, ModelLoadError), self.locked():
            self._recover()

    def _recover(self) -> None:
        for path in sorted([*self.folder.glob(".*"), *self.folder.glob("*/.*")]):
            target = path.with_name(path.name[1:].split(".")[0])
            if path.name.endswith(OLD) and not target.exists():
                self._rename(path, target)
            elif path.name.endswith((OLD, DRAFT)) and not _is_fetched_into(path):
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """Keeps other threads and servers from changing the folder. Must not be held while waiting for a store. Raises
        ModelLoadError when another holder keeps it too long. The system releases the lock of a killed process; without
        file locks each server works alone."""
        until = time.monotonic() + MAX_LOCKED_S
        with ExitStack() as stack:
            # File locks belong to descriptors: threads of this process would also block each other.
            if not self._changing.acquire(timeout=MAX_LOCKED_S):
                raise ModelLoadError(f"{self.folder} was locked for {MAX_LOCKED_S:g} s")
            stack.callback(self._changing.release)
            with suppress(OSError):
                file = stack.enter_context((self.folder / LOCK_NAME).open("ab"))
                while not _lock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
                    if self.stopping or time.monotonic() > until:
                        text = f"{self.folder} was locked by another server for {MAX_LOCKED_S:g} s"
                        raise ModelLoadError("the server is stopping" if self.stopping else text)
                    time.sleep(LOCK_POLL_S)
            yield

    @property
    def empty(self) -> bool:
        return next(self.folder.glob("*/*/" + JSON_NAME), None) is None

    @property
    def problems(self) -> list[str]:
        failures = self._failures.copy().items()
        return [f"{key[0]}/{key[1]}: {reason}" if key else reason for key, (_, _, reason) in failures]

    @property
    def unread(self) -> str:
        """Why the store was unreadable at the last look."""
        return self._failures.get(None, (0, 0.0, ""))[2]

    def missing(self) -> dict[Key, str]:
        """Versions that could not be fetched, with the reasons."""
        failures = self._failures.copy().items()
        return {key: f"it could not be fetched: {reason}" for key, (_, _, reason) in failures if key}

    @property
    def retry_in_s(self) -> float | None:
        """None: no failure."""
        failures = self._failures.copy()
        # If the store fails, its versions wait too.
        times = [at for _, at, _ in ([failures[None]] if None in failures else failures.values())]
        return max(min(times) - self._clock(), LOCK_POLL_S) if times else None

    def synchronise(self, *, insist: bool = False) -> None:
        """Fetches new and changed versions and removes the others. Failures are logged and retried after a pause.
        `insist`: skip the pause."""
        if self._is_pausing(None) and not insist:
            return
        self.fetching, self.progress_at = f"listing {self.shown}", self._clock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._synchronise(insist)
        except Exception as error:  # each file system raises its own errors
            text = str(error).replace(self._url, self.shown).removeprefix(f"{self.shown}: ")
            self._report(None, text or type(error).__name__)
        finally:
            self.fetching = ""

    def _synchronise(self, insist: bool) -> None:
        with self.locked():
            self._recover()
            # Versions that other servers put in place after this point are newer than this listing.
            before = {path: _source(path) for path in self.folder.glob("[!.]*/[!.]*")}
        store, root = open_store(self._url)
        there = list_versions(store, root, self._single)
        if not there:
            raise ModelLoadError(f"empty: expected <model>/<version>/{JSON_NAME}")
        whole = {key: files for key, files in there.items() if JSON_NAME in files and len(files) > 1}
        for key in self._failures.keys() - whole.keys():
            del self._failures[key]  # the size of the store included
        for key in sorted(whole):
            if insist or not self._is_pausing(key):
                self._fetch_if_changed(store, key, whole[key], before)
        with self.locked():
            self._remove_all_but(there.keys(), before)

    def _fetch_if_changed(self, store: Any, key: Key, files: Version, before: Mapping[Path, str]) -> None:
        target = self.folder / key[0] / str(key[1])
        source = json.dumps({name: [file.size, file.identity] for name, file in sorted(files.items())})
        if _source(target) == source:
            self._failures.pop(key, None)  # another server has fetched it
            return
        # A folder outside the model's folder: inside, it would be a model without a version for a moment.
        draft = self.folder / f".{key[0]}.{key[1]}.{os.urandom(8).hex()}{DRAFT}"
        try:
            with self._drafting(draft):
                self._fetch(store, key, files, draft)
                inspect_version(draft)
                for path in draft.glob("*" + SUM_SUFFIX):
                    check_sum(path.with_suffix(""))
                _write(draft / SOURCE_NAME, source.encode())
                with self.locked():
                    now = _source(target)
                    if now not in (source, before.get(target, "")):
                        raise ModelLoadError("another server replaced it")
                    if now != source:
                        (draft / LOCK_NAME).unlink()
                        _put_in_place(draft, target)
        except Exception as error:
            text = str(error).replace(str(draft), f"{key[0]}/{key[1]}") or type(error).__name__
            self._report(key, text)
        else:
            self._failures.pop(key, None)
            log.info("fetched %s/%d from %s", *key, self.shown)

    @contextmanager
    def _drafting(self, draft: Path) -> Iterator[None]:
        """The lock distinguishes this draft from one left by a killed process."""
        with ExitStack() as stack:
            with self.locked():
                stack.callback(shutil.rmtree, draft, ignore_errors=True)
                draft.mkdir()
                _lock(stack.enter_context((draft / LOCK_NAME).open("xb")))
            yield

    def _fetch(self, store: Any, key: Key, files: Version, draft: Path) -> None:
        total = sum(file.size for file in files.values())
        done, log_at = 0, self._clock() + LOG_EVERY_S
        for name, file in files.items():
            size = 0
            with store.open(file.path, "rb", cache_type="none") as remote, (draft / name).open("xb") as local:
                while chunk := remote.read(CHUNK_BYTES):
                    if self.stopping:
                        raise ModelLoadError("the server is stopping")
                    local.write(chunk)
                    size += len(chunk)
                    _check_size(name, file, size, whole=False)
                    self.progress_at = self._clock()
                    moved = f"{(done + size) / 1e6:.0f} of {total / 1e6:.0f} MB"
                    self.fetching = f"fetching {key[0]}/{key[1]} from {self.shown}: {moved}"
                    if self.progress_at >= log_at:
                        log_at = self.progress_at + LOG_EVERY_S
                        log.info("%s", self.fetching)
                local.flush()
                os.fsync(local.fileno())
            _check_size(name, file, size, whole=True)
            done += size

    def _remove_all_but(self, there: Collection[Key], before: Mapping[Path, str]) -> None:
        for path, source in before.items():
            if not VERSION.fullmatch(path.name):
                if path not in self._odd:
                    log.warning("skipping %s: not a fetched version", path)
                self._odd.add(path)
            elif (
                (path.parent.name, int(path.name)) not in there and path.exists() and _source(path) == source
            ):
                gone = path.with_name(f".{path.name}.{os.urandom(8).hex()}{DRAFT}")
                if self._rename(path, gone):
                    shutil.rmtree(gone, ignore_errors=True)
                    with suppress(OSError):
                        path.parent.rmdir()  # if it was the last one

    def _rename(self, path: Path, target: Path) -> bool:
        """One that cannot be renamed holds up no others. It is told of once, and tried again at the next look."""
        try:
            path.rename(target)
        except OSError as error:
            if path not in self._odd:
                log.error("%s cannot be renamed: %s", path, error.strerror or error)
            self._odd.add(path)
            return False
        return True

    def _is_pausing(self, key: Key | None) -> bool:
        return key in self._failures and self._clock() < self._failures[key][1]

    def _report(self, key: Key | None, reason: str) -> None:
        reason = " ".join(reason.split())  # in one line
        count, _, before = self._failures.get(key, (0, 0.0, ""))
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(count, 16))
        self._failures[key] = count + 1, self._clock() + pause, reason
        self.failed += 1
        if reason != before:
            what = f"{key[0]}/{key[1]} is not taken: " if key else ""
            text = "%s: %s%s; what was fetched before stays, next try in %g s"
            log.error(text, self.shown, what, reason, pause)


def _lock(file: IO[bytes], how: int = fcntl.LOCK_EX) -> bool:
    """False: another descriptor holds the lock."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # the file system has no locks
    return True


def _is_fetched_into(draft: Path) -> bool:
    with suppress(OSError), (draft / LOCK_NAME).open("rb+") as file:
        return not _lock(file)
    return False


def _source(version: Path) -> str:
    with suppress(OSError, ValueError):
        return (version / SOURCE_NAME).read_text()
    return ""


def _check_size(name: str, file: RemoteFile, size: int, *, whole: bool) -> None:
    """Stops a store that sends more bytes than it lists."""
    if size > file.size or (whole and size != file.size):
        raise ModelLoadError(
            f"{name}: expected {file.size:,} bytes, got {'more' if not whole else f'{size:,}'}"
        )


def _put_in_place(draft: Path, target: Path) -> None:
    """recover() handles a kill between the two renames."""
    target.parent.mkdir(exist_ok=True)
    old = target.with_name(f".{target.name}.{os.urandom(8).hex()}{OLD}")
    if target.exists():
        target.rename(old)
    draft.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
