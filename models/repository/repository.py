# SPDX-License-Identifier: Apache-2.0
"""A repository: `<root>/<model>/<version>/{model.json,model.safetensors}`, or one model whose files lie at the root.
Owns model names, version numbers and paths; knows nothing of file formats. Blocking file access: call it at load time,
from one thread."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from fused_mlp.models.errors import ModelLoadError, as_load_error
from fused_mlp.models.program.spec import MlpSpec
from fused_mlp.models.repository.checksums import MAX_HASHED_AT_LOAD, SUM_SUFFIX, check_sum
from fused_mlp.models.repository.version_directory import (
    JSON_NAME,
    WEIGHTS_NAME,
    ModelFile,
    inspect_version,
    load_version,
    read_model_file,
    weight_files,
)
from fused_mlp.models.weights.mlp import Mlp

log = logging.getLogger(__name__)

MAX_SILENCE_S = 30.0  # of a share or store, before it counts as away
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)  # fits an int64, as the wire contract has it


INDEX_NAME = f"{WEIGHTS_NAME}.index.json"  # of shards, where there are some
# Inode, size and time of the last change of model.json, model.safetensors, its index, shards and hashes; None: there is
# none. A change means another version, or one that is still being written.
Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class FoundVersion:
    """One version directory. `problem` says why it cannot be served; `model_file` is None then. A scan does
    not read weights, so `load` may still fail. `signature`: of its files before they were read."""

    version: int
    path: Path
    model_file: ModelFile | None = None
    problem: str | None = None
    signature: Signature = ()

    @property
    def spec(self) -> MlpSpec | None:
        return None if self.model_file is None else self.model_file.spec


@dataclass(frozen=True)
class FoundModel:
    """A model and its versions, lowest first. `problems` lists what lies beside them and is not a version."""

    name: str
    versions: tuple[FoundVersion, ...]
    problems: tuple[str, ...] = ()

    @property
    def usable(self) -> tuple[FoundVersion, ...]:
        return tuple(version for version in self.versions if version.problem is None)

    @property
    def default(self) -> FoundVersion | None:
        """The highest version without a problem: what is served when a request names no version."""
        return self.usable[-1] if self.usable else None


def check_name(name: str) -> str:
    """The name, if it is safe as a path, a metrics label and part of a log line."""
    if not _NAME.fullmatch(name):
        raise ModelLoadError(
            f"model name {name[:160]!r}: expected 1-128 of A-Z a-z 0-9 . _ -, starting with a letter or digit"
        )
    return name


class Repository:
    """The models below a directory. Symbolic links are followed as long as they stay inside it. `single`: the name of
    the model whose files may lie right in it, as version 1."""

    def __init__(self, root: str | os.PathLike[str], single: str | None = None) -> None:
        self.root = Path(root)
        self._single = single
        # The signatures that the last scan or look saw: what cannot be read now counts as unchanged.
        self.seen: dict[str, dict[int, Signature]] = {}
        self._unreadable: dict[str, str] = {}  # why, by model; of all of it by ""
        self._looking_since: float | None = None  # another thread reads it

    @property
    def parts(self) -> tuple[Repository, ...]:
        return (self,)

    @property
    def roots(self) -> list[Path]:
        return [part.root for part in self.parts]

    @property
    def shown(self) -> str:
        """Where it is, for operators."""
        return str(self.root)

    @property
    def problems(self) -> list[str]:
        """The problems of the last scan or look, and a look that does not end."""
        since = self._looking_since
        silent_s = 0.0 if since is None else time.monotonic() - since
        silent = [f"{self.shown} has not answered for {silent_s:.0f} s"] if silent_s > MAX_SILENCE_S else []
        return [*self._unreadable.values(), *silent]

    @property
    def unreadable(self) -> set[str]:
        """The models whose folders could not be read last time."""
        return {name for part in self.parts for name in part._unreadable if name}

    def missing(self) -> Mapping[tuple[str, int], str]:
        """Versions that belong here and could not be brought, with the reasons; for repositories that are copies."""
        return {}

    @property
    def is_single(self) -> bool:
        return self._single is not None and (self.root / JSON_NAME).is_file()

    def _path(self, name: str, version: int) -> Path:
        return self.root if self.is_single else self.root / name / str(version)

    def scan(self, *, headers: bool = True) -> list[FoundModel]:
        """Every model, by name, with every version, broken ones included and marked. `headers`: look at those of the
        weights too, as reading a version does in any case. Raises ModelLoadError when there is no repository or nothing
        in it."""
        self._unreadable = {}
        try:
            models = self._scan(headers)
        except ModelLoadError as error:
            self._unreadable = {"": str(error)}
            raise
        self.seen = {model.name: {v.version: v.signature for v in model.versions} for model in models}
        return models

    def _scan(self, headers: bool) -> list[FoundModel]:
        if self.is_single:
            return [self._find_single(headers)]
        models = []
        for path in self._model_paths():
            try:
                check_name(path.name)
            except ModelLoadError as error:
                log.warning("%s is passed over: %s", path, error)
                continue
            models.append(self._find(path, headers))
        if not models:
            raise ModelLoadError(self._why_empty())
        return models

    def _why_empty(self) -> str:
        if (self.root / WEIGHTS_NAME).is_file():
            return (
                f"{self.root / JSON_NAME}: no such file, but {WEIGHTS_NAME} is there: a few words have to say what its "
                "tensors are, see docs/operations/reload.md"
            )
        return (
            f"model repository {self.root} is empty: expected <model>/<version>/{JSON_NAME} "
            f"and {WEIGHTS_NAME} in it"
        )

    def has(self, name: str) -> bool:
        if self.is_single:
            return name == self._single
        return (self.root / check_name(name)).is_dir() or any(name == model for model, _ in self.missing())

    def find(self, name: str) -> FoundModel:
        """One model by name."""
        found = self.find_or_none(name)
        if found is None:
            places = ", ".join(part.shown for part in self.parts)
            raise ModelLoadError(f"model {name!r} is not in repository {places}")
        return found

    def find_or_none(self, name: str) -> FoundModel | None:
        """None: it is not there. Raises ModelLoadError where no model can be, and for one that was there while the disk
        or share is away."""
        if not self.has(name):
            if name in self.seen:
                self._check_left()
            return None
        return self._find_single(True) if self.is_single else self._find(self.root / name, True)

    def load(self, name: str, version: int | None = None) -> Mlp:
        """A version's model; the highest usable one when none is named."""
        model = self.find(name)
        if version is None:
            if model.default is None:
                why = "; ".join(f"version {v.version}: {v.problem}" for v in model.versions)
                raise ModelLoadError(f"model {name!r} has no usable version: {why or 'there is none'}")
            found = model.default
        else:
            matching = [v for v in model.versions if v.version == version]
            if not matching:
                have = ", ".join(str(v.version) for v in model.versions) or "none"
                raise ModelLoadError(f"model {name!r} has no version {version}; it has {have}")
            found = matching[0]
        try:
            return self.read(found)
        except ModelLoadError as error:
            raise ModelLoadError(f"model {name!r} version {found.version}: {error}") from error

    def read(self, found: FoundVersion, *, again: bool = False) -> Mlp:
        """The model of a version that a scan found, without another scan. `again`: the caller knows a hash."""
        if found.problem is not None:
            raise ModelLoadError(found.problem)
        try:
            if not again:
                for file in weight_files(found.path, found.model_file or read_model_file(found.path)):
                    check_sum(file, MAX_HASHED_AT_LOAD)
            return load_version(found.path, found.model_file)
        except Exception as error:
            raise as_load_error(error, found.path) from error

    def look(self) -> dict[str, dict[int, Signature]]:
        """The signatures of all versions, by model: what a scan would find changed, without reading a file. What cannot
        be read is as it was before, and so is all of it when nothing is left: the disk or share is away."""
        problems: dict[str, str] = {}
        self._looking_since = time.monotonic()
        try:
            seen = self._look(problems)
            if self.seen and not seen:
                self._check_left()
        except ModelLoadError as error:
            problems, seen = {"": str(error)}, self.seen
        finally:
            self._looking_since = None
        for name, problem in problems.items():
            if self._unreadable.get(name) != problem:
                log.error("%s; keeping the current versions", problem)
        self._unreadable, self.seen = problems, seen
        return seen

    def _look(self, problems: dict[str, str]) -> dict[str, dict[int, Signature]]:
        if self.is_single:
            assert self._single is not None
            signature = _signature(self.root)
            return {self._single: {1: signature}} if any(signature) else {}
        seen: dict[str, dict[int, Signature]] = {}
        for model in self._model_paths():
            if not _NAME.fullmatch(model.name):
                continue
            try:
                paths = [path for path in self._entries(model) if _is_version(path)]
                seen[model.name] = {int(path.name): _signature(path) for path in paths}
            except FileNotFoundError:
                pass  # removed meanwhile, or never brought
            except Exception as error:  # it is there, and cannot be read now
                problems[model.name] = str(as_load_error(error, model))
                if model.name in self.seen:
                    seen[model.name] = self.seen[model.name]
        for (name, version), why in self.missing().items():
            seen.setdefault(name, {}).setdefault(version, _missing_signature(why))
        return seen

    def is_whole(self, name: str, version: int) -> bool:
        """Whether every weights file of a version matches a hash beside it: nothing of the version is still to come."""
        path = self._path(name, version)
        try:
            # Compares the length of the file first, which tells most incomplete versions at once.
            files = weight_files(path, inspect_version(path))
            return all(check_sum(file) for file in files)
        except Exception:  # reading the version tells which
            return False

    def _model_paths(self) -> list[Path]:
        """The directories right below the root, without hidden and private ones (`.git`, `__pycache__`), and those that
        models would have of which no version could be brought."""
        try:
            entries = sorted(self.root.iterdir())
        except FileNotFoundError:
            raise ModelLoadError(f"model repository {self.root} does not exist") from None
        except NotADirectoryError:
            raise ModelLoadError(f"model repository {self.root} is not a directory") from None
        except OSError as error:
            raise ModelLoadError(f"model repository {self.root}: {error.strerror or error}") from None
        paths = [entry for entry in entries if entry.name[0] not in "._" and _is_folder(entry)]
        return sorted({*paths, *(self.root / name for name, _ in self.missing())})

    def _check_left(self) -> None:
        with suppress(OSError), os.scandir(self.root) as entries:
            if any(entry.is_dir() and entry.name[0] not in "._" for entry in entries):
                return
        raise ModelLoadError(f"model repository {self.root}: it is empty now")

    def _find(self, path: Path, headers: bool) -> FoundModel:
        versions: list[FoundVersion] = []
        problems: list[str] = []
        self._unreadable.pop(path.name, None)
        try:
            entries = self._entries(path)
        except FileNotFoundError:
            entries = []
        except Exception as error:
            self._unreadable[path.name] = problem = str(as_load_error(error, path))
            return FoundModel(path.name, (), (problem,))
        for entry in entries:
            if entry.name[0] in "._":
                continue
            if _is_version(entry):
                versions.append(self._inspect(entry, int(entry.name), headers))
            elif entry.name in (JSON_NAME, WEIGHTS_NAME):
                problems.append(f"{entry}: belongs into a version directory, such as {path / '1'}")
            elif _is_folder(entry):
                problems.append(
                    f"{entry}: not a version, expected a whole number from 1 without leading zeros"
                )
        there = {found.version for found in versions}
        for (name, version), why in self.missing().items():
            if name == path.name and version not in there:
                signature = _missing_signature(why)
                versions.append(FoundVersion(version, path / str(version), problem=why, signature=signature))
        versions.sort(key=lambda found: found.version)
        return FoundModel(path.name, tuple(versions), tuple(problems))

    def _entries(self, model: Path) -> list[Path]:
        self._check_inside(model)
        try:
            return sorted(model.iterdir())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ModelLoadError(f"model repository {model}: {error.strerror or error}") from None

    def _find_single(self, headers: bool) -> FoundModel:
        assert self._single is not None
        return FoundModel(check_name(self._single), (self._inspect(self.root, 1, headers),))

    def _inspect(self, path: Path, version: int, headers: bool) -> FoundVersion:
        signature = _signature(path)
        try:
            if not _is_folder(path):
                raise ModelLoadError(f"{path}: a symbolic link that leads to no folder")
            for name in ("", JSON_NAME, WEIGHTS_NAME, *_others(path)):
                self._check_inside(path / name)
            read = inspect_version if headers else read_model_file
            return FoundVersion(version, path, read(path), signature=signature)
        except Exception as error:
            problem = str(as_load_error(error, path))
            return FoundVersion(version, path, problem=problem, signature=signature)

    def _check_inside(self, path: Path) -> None:
        """`path` is right below a folder that was checked before, or the root."""
        if path.is_symlink() and not path.resolve().is_relative_to(self.root.resolve()):
            raise ModelLoadError(f"{path}: a symbolic link that leads out of the repository is not followed")


def _is_folder(path: Path) -> bool:
    """Also one that cannot be looked at: reading it tells why."""
    try:
        return path.is_dir()
    except OSError:
        return True


def _is_version(path: Path) -> bool:
    """Also one that cannot be a folder until its link is mended."""
    return VERSION.fullmatch(path.name) is not None and (_is_folder(path) or path.is_symlink())


def _signature(version: Path) -> Signature:
    return tuple(_describe(version / name) for name in (JSON_NAME, WEIGHTS_NAME, *_others(version)))


def _missing_signature(why: str) -> Signature:
    """Another reason is another state to tell of."""
    return ((0, 0, crc32(why.encode())),)


def _others(version: Path) -> list[str]:
    """The other files that a version may be made of: an index, shards, hashes."""
    try:
        names = os.listdir(version)
    except OSError:
        return []
    return sorted(
        name
        for name in names
        if name == INDEX_NAME or (name.endswith((".safetensors", SUM_SUFFIX)) and name != WEIGHTS_NAME)
    )


def _describe(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
