# SPDX-License-Identifier: Apache-2.0
"""A folder that holds what a store does, version by version: each is fetched beside its place, checked, and renamed
into it. What is in the folder stays when the store cannot be reached. Several servers may share the folder: each
fetches beside the others, and one at a time changes what is in place. Runs on a thread that may wait."""

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
from fused_mlp.models.checksums import SUM_SUFFIX, check_sum
from fused_mlp.models.repository import VERSION
from fused_mlp.models.version_directory import JSON_NAME, inspect_version
from fused_mlp.service.stores.listing import RemoteFile, Version, list_versions, open_store

log = logging.getLogger(__name__)

SOURCE_NAME = ".source.json"  # what a version was fetched from
DRAFT, OLD = ".draft", ".old"
CHUNK_BYTES = 1 << 20
TELL_EVERY_S = 5.0
LOCK_NAME, LOCK_POLL_S = ".lock", 0.02
MOST_LOCKED_S = 10.0  # by another server: it renames and removes, and waits for no store meanwhile
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0

Key = tuple[str, int]


def without_password(urls: str) -> str:
    """As people and logs may see them."""
    return re.sub(r"//[^/@,]*@", "//", urls)


class Mirror:
    """`single`: the name of a model whose files may lie at the root of the store."""

    def __init__(
        self,
        url: str,
        cache: Path,
        *,
        single: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self.shown = without_password(url)
        self.folder = cache / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
        self._single = single
        self._clock = clock
        # By version, or None for the store itself: failures in a row, when to try again, the last reason.
        self._failures: dict[Key | None, tuple[int, float, str]] = {}
        self._changing = threading.Lock()
        self._odd: set[Path] = set()  # told of
        self.failed = 0  # since the start
        self.fetching = ""  # what, and how far it is
        self.progress_at = clock()
        self.stopping = False  # set by the thread that waits for the end of a fetch

    def recover(self) -> None:
        """After a process that was killed: its drafts go, and a version that was about to be replaced comes back."""
        with suppress(OSError, ModelLoadError), self.locked():
            self._recover()

    def _recover(self) -> None:
        for path in sorted([*self.folder.glob(".*"), *self.folder.glob("*/.*")]):
            if (
                path.name.endswith(OLD)
                and not (target := path.with_name(path.name[1:].split(".")[0])).exists()
            ):
                path.rename(target)
            elif path.name.endswith((OLD, DRAFT)) and not _is_fetched_into(path):
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """Keeps other threads and servers from changing the folder. Not to be held while a store is waited for. Raises
        ModelLoadError when another has held it too long. The system releases the lock of a process that is killed;
        where it has no locks each server is alone."""
        until = time.monotonic() + MOST_LOCKED_S
        with ExitStack() as stack:
            # Locks on files are between descriptors: threads of this process would refuse each other too.
            if not self._changing.acquire(timeout=MOST_LOCKED_S):
                raise ModelLoadError(f"{self.folder} was locked for {MOST_LOCKED_S:g} s")
            stack.callback(self._changing.release)
            with suppress(OSError):
                file = stack.enter_context((self.folder / LOCK_NAME).open("ab"))
                while not _lock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
                    if self.stopping or time.monotonic() > until:
                        text = f"{self.folder} was locked by another server for {MOST_LOCKED_S:g} s"
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
        """Why the store itself could not be read last time."""
        return self._failures.get(None, (0, 0.0, ""))[2]

    def missing(self) -> dict[Key, str]:
        """Versions that could not be fetched, with the reasons."""
        failures = self._failures.copy().items()
        return {key: f"it could not be fetched: {reason}" for key, (_, _, reason) in failures if key}

    @property
    def retry_in_s(self) -> float | None:
        """None: nothing has failed."""
        failures = self._failures.copy()
        # Versions wait for the store itself.
        times = [at for _, at, _ in ([failures[None]] if None in failures else failures.values())]
        return max(min(times) - self._clock(), LOCK_POLL_S) if times else None

    def synchronise(self, *, insist: bool = False) -> None:
        """Fetch what is new or has changed, remove what is gone. What fails is told, and is to be tried again after a
        pause. `insist`: not to wait for the end of a pause."""
        if self._is_pausing(None) and not insist:
            return
        self.fetching, self.progress_at = f"listing {self.shown}", self._clock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._synchronise(insist)
        except Exception as error:  # each file system has errors of its own
            text = str(error).replace(self._url, self.shown).removeprefix(f"{self.shown}: ")
            self._report(None, text or type(error).__name__)
        finally:
            self.fetching = ""

    def _synchronise(self, insist: bool) -> None:
        with self.locked():
            self._recover()
            # What other servers put in place after this is newer than what is listed here.
            before = {path: _source(path) for path in self.folder.glob("[!.]*/[!.]*")}
        store, root = open_store(self._url)
        there = list_versions(store, root, self._single)
        if not there:
            raise ModelLoadError(f"nothing is there: expected <model>/<version>/{JSON_NAME}")
        whole = {key: files for key, files in there.items() if JSON_NAME in files and len(files) > 1}
        for key in self._failures.keys() - whole.keys():
            del self._failures[key]  # that of the store too
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
        # Not in the model's folder, which would be a model without a version meanwhile.
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
                        raise ModelLoadError("another server has replaced it meanwhile")
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
        """The draft is locked meanwhile: it tells it from that of a process that was killed."""
        with ExitStack() as stack:
            with self.locked():
                stack.callback(shutil.rmtree, draft, ignore_errors=True)
                draft.mkdir()
                _lock(stack.enter_context((draft / LOCK_NAME).open("xb")))
            yield

    def _fetch(self, store: Any, key: Key, files: Version, draft: Path) -> None:
        total = sum(file.size for file in files.values())
        done, tell_at = 0, self._clock() + TELL_EVERY_S
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
                    if self.progress_at >= tell_at:
                        tell_at = self.progress_at + TELL_EVERY_S
                        log.info("%s", self.fetching)
                local.flush()
                os.fsync(local.fileno())
            _check_size(name, file, size, whole=True)
            done += size

    def _remove_all_but(self, there: Collection[Key], before: Mapping[Path, str]) -> None:
        for path, source in before.items():
            if not VERSION.fullmatch(path.name):
                if path not in self._odd:
                    log.warning("%s is passed over: it is not a version that was fetched", path)
                self._odd.add(path)
            elif (
                (path.parent.name, int(path.name)) not in there and path.exists() and _source(path) == source
            ):
                gone = path.with_name(f".{path.name}.{os.urandom(8).hex()}{DRAFT}")
                path.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
                with suppress(OSError):
                    path.parent.rmdir()  # where it was the last one

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
    """False: another descriptor has it locked."""
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
    """A store that sends more than it lists is stopped at once."""
    if size > file.size or (whole and size != file.size):
        raise ModelLoadError(
            f"{name}: expected {file.size:,} bytes, got {'more' if not whole else f'{size:,}'}"
        )


def _put_in_place(draft: Path, target: Path) -> None:
    """A kill between the two renames is what recover() is for."""
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
