# SPDX-License-Identifier: Apache-2.0
"""Arrays from .npy and .npz files, read part by part. Pickled objects are never loaded. An array in column order
(Fortran) is read whole: its rows lie scattered over the file."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.cli.rows.source import InputError, MemoryRows, Rows, check_range, part_rows, shorten

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"
_READ_BYTES = 1 << 20
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_READ_ERRORS = (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError)


@dataclass(frozen=True)
class NpyRows:
    """A .npy array in row order, of which only the header was read."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: IO[bytes]

    def parts(self, most_rows: int, width: int) -> Iterator[NDArray[Any]]:
        count, step = prod(self.shape) // width, part_rows(most_rows, width)
        for first in range(0, count, step):
            rows = min(step, count - first)
            part = np.frombuffer(self.read(rows * width), self.dtype).reshape(rows, width)
            yield check_range(part, self.name, first)
        if self.stream.read(1):
            raise InputError(f"{self.name}: expected one array of shape {self.shape}, got more data after it")

    def share_read(self) -> None:
        """`shape` says more."""

    def read(self, elements: int) -> bytearray:
        """In small steps: a header can promise more than the file holds, or than memory does."""
        wanted, data = elements * self.dtype.itemsize, bytearray()
        try:
            while len(data) < wanted and (piece := self.stream.read(min(wanted - len(data), _READ_BYTES))):
                data += piece
        except _READ_ERRORS as error:
            raise InputError(f"{self.name}: cannot be read to its end: {shorten(str(error), 120)}") from None
        if len(data) < wanted:
            raise InputError(
                f"{self.name}: expected an array of shape {self.shape}, got a file that ends early"
            )
        return data


def open_npy(name: str, stream: IO[bytes]) -> Rows:
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"its format has version {version}")
        shape, column_order, dtype = _HEADERS[version](stream)
    except (
        Exception
    ) as error:  # numpy reads the header as Python source: what is wrong with it can be anything
        raise InputError(f"{name}: not a readable .npy array: {shorten(str(error), 120)}") from None
    if dtype.hasobject:
        raise InputError(f"{name}: not a readable .npy array: it holds pickled objects, which are not loaded")
    if dtype.kind not in "fiub" or dtype.itemsize > 8 or min(shape, default=0) < 0:
        raise InputError(f"{name}: expected an array of numbers of up to 64 bits, got {dtype} {shape}")
    rows = NpyRows(name, shape, dtype, stream)
    if not column_order or len(shape) < 2:
        return rows
    return MemoryRows(name, np.frombuffer(rows.read(prod(shape)), dtype).reshape(shape, order="F"))


def open_npz(name: str, stream: io.BufferedReader) -> Rows:
    """The only array of an archive."""
    if not stream.seekable():
        raise InputError(f"{name}: an .npz archive cannot be read from a pipe: give it as a file")
    try:
        archive = zipfile.ZipFile(stream)
        names = archive.namelist()
        if len(names) != 1:
            listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise InputError(
                f"{name}: expected one array, got {len(names)} ({listed}): save the rows alone, as .npy"
            )
        return open_npy(name, archive.open(names[0]))
    except _READ_ERRORS as error:
        raise InputError(f"{name}: not a readable .npz archive: {shorten(str(error), 120)}") from None
