# SPDX-License-Identifier: Apache-2.0
"""safetensors files as numpy arrays, read one tensor at a time. The safetensors package checks the header; the bytes
are read here, since not every version of its numpy interface knows bfloat16."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from fused_mlp.models.weights.dtypes import Array, named_dtype
from fused_mlp.models.weights.tables import MIN_BYTES, open_table

UNREADABLE = (SafetensorError, OSError)  # what the functions below raise

_DTYPES = {
    "BOOL": "bool",
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    **{
        f"{kind}{bits}": f"{name}{bits}"
        for kind, name in (("I", "int"), ("U", "uint"))
        for bits in (8, 16, 32, 64)
    },
}
_NAMES = {name: stored for stored, name in _DTYPES.items()}
_LINE = 64
_DIGEST = "sha256:"  # before the name of a table, in the metadata of the file
_WRITTEN_AT_ONCE = 64 << 20


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in a file. `dtype` is safetensors' name for it, such as F32. `digest` is the hash of a table
    that the file gives."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    digest: str = ""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * named_dtype(self._numpy_name).itemsize

    @property
    def _numpy_name(self) -> str:
        if self.dtype not in _DTYPES:
            raise SafetensorError(f"dtype {self.dtype} is not supported")
        return _DTYPES[self.dtype]

    def open_from(self, file: FileIO) -> Array:
        """A table, without reading all of it."""
        return open_table(file, self.offset, self._numpy_name, self.shape, self.digest)

    def read(self) -> Array:
        with self.path.open("rb", buffering=0) as file:
            return self.read_from(file)

    def read_from(self, file: FileIO) -> Array:
        """From the open file, which is `path`."""
        try:
            values: Array = np.empty(self.shape, named_dtype(self._numpy_name))
        except ValueError as error:  # more dimensions than numpy has, or sizes beside a zero
            raise SafetensorError(f"shape: {error}") from error
        rest = values.reshape(-1).view(np.uint8)
        file.seek(self.offset)
        while rest.size:  # one read takes 2 GiB at most
            count = file.readinto(rest.data)
            if not count:
                raise SafetensorError("the file ends before the tensor does")
            rest = rest[count:]
        return values


def read_tensors(
    stored: Mapping[str, StoredTensor], path: Path, tables: Collection[str] = ()
) -> dict[str, Array]:
    """All tensors of one file; of those in `tables`, the large ones are opened (models/weights/tables.py)."""
    with path.open("rb", buffering=0) as file:
        return {
            name: tensor.open_from(file)
            if name in tables and tensor.bytes >= MIN_BYTES
            else tensor.read_from(file)
            for name, tensor in stored.items()
        }


def write_tensors(file: BinaryIO, tensors: Mapping[str, Array], first: Collection[str] = ()) -> None:
    """A safetensors file, tensor by tensor: the whole is never in memory twice. Those of `first` begin at cache lines
    if their sizes are multiples of one: a row of a table then takes as few lines as it can."""
    names = sorted(tensors, key=lambda name: (name not in first, -tensors[name].itemsize, name))
    header: dict[str, dict[str, object]] = {}
    if digests := {
        _DIGEST + name: hashlib.sha256(_bytes_of(tensors[name]).data).hexdigest()
        for name in names
        if name in first and tensors[name].nbytes >= MIN_BYTES
    }:
        header["__metadata__"] = {**digests}
    at = 0
    for name in names:
        size = tensors[name].nbytes
        dtype = _NAMES[tensors[name].dtype.name]
        header[name] = {"dtype": dtype, "shape": list(tensors[name].shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _LINE)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        values = _bytes_of(tensors[name])
        for start in range(0, values.size, _WRITTEN_AT_ONCE):
            file.write(values[start : start + _WRITTEN_AT_ONCE].data)


def _bytes_of(tensor: Array) -> Array:
    values: Array = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    return values


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of the file by name, in the file's order. Checked: offsets, shapes and the file's length fit
    together."""
    with safe_open(path, framework="numpy") as file:
        names = list(file.keys())
    with path.open("rb") as raw:
        size = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(size))
    digests = header.get("__metadata__", {})
    return {
        name: StoredTensor(
            path,
            header[name]["dtype"],
            tuple(header[name]["shape"]),
            8 + size + header[name]["data_offsets"][0],
            digests.get(_DIGEST + name, ""),
        )
        for name in names
    }
