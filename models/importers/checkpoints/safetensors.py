# SPDX-License-Identifier: Apache-2.0
"""A safetensors checkpoint as a mapping from tensor names to arrays: one file, or shards behind an index.
Tensors are read when asked for, so that one block of a large checkpoint costs no more than itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.weights.dtypes import Array
from fused_mlp.models.weights.safetensors_file import UNREADABLE, read_header

INDEX_SUFFIX = ".safetensors.index.json"


class SafetensorsCheckpoint(Mapping[str, Array]):
    """`path`: a `.safetensors` file, a `*.safetensors.index.json`, or a directory with either in it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _find(Path(path))
        self._header = cache(read_header)  # of each shard that is asked for
        self._files = (
            _read_index(self.path) if self.path.name.endswith(INDEX_SUFFIX) else self._read_names(self.path)
        )

    @property
    def files(self) -> list[Path]:
        """Each file with tensors, once."""
        return sorted(set(self._files.values()))

    def __getitem__(self, name: str) -> Array:
        file = self._files[name]
        try:
            stored = self._header(file).get(name)
            if stored is not None:
                return stored.read()
            why = "it is not in this file"
        except UNREADABLE as error:
            why = first_line(error)
        raise ModelLoadError(f"{file}: tensor {name!r} is not readable: {why}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def _read_names(self, path: Path) -> dict[str, Path]:
        try:
            return dict.fromkeys(self._header(path), path)
        except FileNotFoundError:
            raise ModelLoadError(f"{path}: no such file") from None
        except UNREADABLE as error:
            raise ModelLoadError(f"{path}: not a readable safetensors file: {first_line(error)}") from error


def _find(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = [*path.glob(f"*{INDEX_SUFFIX}")] or [*path.glob("*.safetensors")]
    if len(found) != 1:
        names = ", ".join(sorted(each.name for each in found)) or "none"
        raise ModelLoadError(f"{path}: expected one safetensors file or index in it, found {names}")
    return found[0]


def _read_index(path: Path) -> dict[str, Path]:
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        shards = {str(name): str(shard) for name, shard in weight_map.items()}
    except OSError as error:
        raise ModelLoadError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not a safetensors index: expected JSON with a weight_map") from error
    for shard in shards.values():
        if Path(shard).name != shard or not shard.isprintable():
            raise ModelLoadError(f"{path}: shard {shard!r} is not a plain file name beside the index")
    return {name: path.parent / shard for name, shard in shards.items()}
