# SPDX-License-Identifier: Apache-2.0
"""safetensors files as numpy arrays, read one tensor at a time. The safetensors package checks the header; the bytes
are read here, since not every version of its numpy interface knows bfloat16."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from fused_mlp.models.dtypes import Array, named_dtype

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


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in a file. `dtype` is safetensors' name for it, such as F32."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def read(self) -> Array:
        with self.path.open("rb", buffering=0) as file:
            return self.read_from(file)

    def read_from(self, file: FileIO) -> Array:
        """From the open file, which is `path`."""
        if self.dtype not in _DTYPES:
            raise SafetensorError(f"dtype {self.dtype} is not supported")
        values: Array = np.empty(self.shape, named_dtype(_DTYPES[self.dtype]))
        rest = values.reshape(-1).view(np.uint8)
        file.seek(self.offset)
        while rest.size:  # one read takes 2 GiB at most
            count = file.readinto(rest.data)
            if not count:
                raise SafetensorError("the file ends before the tensor does")
            rest = rest[count:]
        return values


def read_tensors(stored: Mapping[str, StoredTensor], path: Path) -> dict[str, Array]:
    """All tensors of one file."""
    with path.open("rb", buffering=0) as file:
        return {name: tensor.read_from(file) for name, tensor in stored.items()}


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of the file by name, in the file's order. Checked: offsets, shapes and the file's length fit
    together."""
    with safe_open(path, framework="numpy") as file:
        names = list(file.keys())
    with path.open("rb") as raw:
        size = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(size))
    return {
        name: StoredTensor(
            path,
            header[name]["dtype"],
            tuple(header[name]["shape"]),
            8 + size + header[name]["data_offsets"][0],
        )
        for name in names
    }
