# SPDX-License-Identifier: Apache-2.0
"""The file that keeps policies which were changed while the server runs. Several servers may share it: each reads it,
modifies it and writes it in one step, under a lock. Does not know which policies are in force."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fused_mlp.service.catalog.policies import Changes
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.settings.policy import Policy, parse_policies
from fused_mlp.service.settings.settings import DEMO_REPOSITORY, Settings

FILE_NAME = "policy.json"
MOST_BYTES = 1 << 20
MOST_WAIT_S = 5.0  # for another process, which holds the lock for one write
_POLL_S = 0.01


class NotKept(Exception):
    """Why a change cannot be written, in one line."""


class PolicyFile:
    """`path` is None where nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @classmethod
    def of(cls, settings: Settings, root: Path) -> PolicyFile:
        """In the first repository. Beside its folder `root` if that mirrors a store; nowhere if it is the demo, which
        is part of the package."""
        if settings.policy_file is not None:
            return cls(settings.policy_file)
        place = settings.repositories[0]
        if "://" in place:
            return cls(root.with_name(f"{root.name}.{FILE_NAME}"))
        return cls(None if place == str(DEMO_REPOSITORY) else Path(place) / FILE_NAME)

    def read(self) -> Changes:
        """None yet where there is no such file. Raises ValueError in one line."""
        try:
            text = self._bytes().decode()
            return {
                name: {field: getattr(policy, field) for field in policy.model_fields_set}
                for name, policy in parse_policies(text).items()
            }
        except FileNotFoundError:
            return {}
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path}: expected UTF-8: {error.reason} at byte {error.start}") from None
        except OSError as error:
            raise ValueError(f"{self.path}: {error.strerror or error}") from None
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    def _bytes(self) -> bytes:
        if self.path is None:
            raise FileNotFoundError
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would wait for a writer
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("expected a regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MOST_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(data) > MOST_BYTES:
            raise ValueError(f"expected at most {MOST_BYTES:,} bytes, got more")
        return data

    def update(self, edit: Callable[[Changes], Changes]) -> tuple[Changes, Changes]:
        """What it held, and what it holds now. Raises NotKept, and leaves a file alone that cannot be used."""
        if self.path is None:
            raise NotKept(
                "the demo that is part of the package keeps no policies; FUSED_MLP_POLICY_FILE names a file"
            )
        real = Path(os.path.realpath(self.path))  # links stay: Kubernetes mounts files as links
        try:
            with _locked(real.parent):
                before = self.read()
                after = edit(before)
                if after != before:
                    _write(real, after)
                return before, after
        except OSError as error:
            raise NotKept(f"{self.path}: {error.strerror or error}") from None
        except (ValueError, InvalidInput) as error:
            raise NotKept(str(error)) from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Among the processes of one machine. The folder, because the file itself is replaced."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        give_up = time.monotonic() + MOST_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise ValueError(f"{folder}: another process holds its lock") from None
                time.sleep(_POLL_S)
            except OSError:
                break  # a network file system that cannot lock folders
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, changes: Changes) -> None:
    """In one step: a reader, and a start after a power failure, finds the old file or the new one. Raises OSError."""
    written = {
        name: Policy.model_validate(own).model_dump(mode="json", exclude_unset=True)
        for name, own in changes.items()
    }
    mode = stat.S_IMODE(os.stat(path).st_mode) if path.exists() else 0o644
    if not mode & 0o222:
        raise ValueError(f"{path} is read-only")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(written, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
