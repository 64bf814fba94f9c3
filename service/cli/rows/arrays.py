# SPDX-License-Identifier: Apache-2.0
"""Arrays from .npy and .npz files, read in parts. Pickled objects are never loaded. An array in Fortran order is read
whole: its rows are scattered over the file."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.cli.rows.source import InputError, Rows, part_rows, shorten

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_PIECE = 1 << 24
_READ_ERRORS = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError),
    UnicodeDecodeError,  # names in an archive
)


def array_rows(name: str, array: NDArray[Any]) -> Rows:
    return _stream_rows(name, array.shape, array.dtype, io.BytesIO(array.tobytes()))


def open_npy(name: str, stream: IO[bytes]) -> Rows:
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"unsupported format version {version}")
        shape, fortran_order, dtype = _HEADERS[version](stream)
    except Exception as error:  # numpy parses the header as Python source, which can fail in many ways
        raise InputError(f"{name}: not a readable .npy array: {shorten(str(error), 120)}") from None
    if dtype.hasobject:
        raise InputError(f"{name}: not a readable .npy array: it holds pickled objects, which are not loaded")
    if dtype.kind not in "fiub" or dtype.itemsize > 8 or min(shape, default=0) < 0:
        raise InputError(f"{name}: expected an array of numbers of up to 64 bits, got {dtype} {shape}")
    if not fortran_order:
        return _stream_rows(name, shape, dtype, stream)
    wanted = prod(shape) * dtype.itemsize
    data = _checked(name, shape, _read(name, stream, wanted + 1), wanted, last=True)
    return array_rows(name, np.frombuffer(data, dtype).reshape(shape, order="F"))


def open_npz(name: str, stream: io.BufferedReader) -> Rows:
    """The only array of an archive."""
    if not stream.seekable():
        raise InputError(f"{name}: an .npz archive cannot be read from a pipe: give it as a file")
    try:
        archive = zipfile.ZipFile(stream)
        names = archive.namelist()
        if len(names) == 1:
            return open_npy(name, archive.open(names[0]))
    except _READ_ERRORS as error:
        raise InputError(f"{name}: not a readable .npz archive: {shorten(str(error), 120)}") from None
    listed = shorten(", ".join(names), 80)
    raise InputError(f"{name}: expected one array, got {len(names)} ({listed}): save the rows alone, as .npy")


def _stream_rows(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], stream: IO[bytes]) -> Rows:
    def parts(max_rows: int, width: int) -> Iterator[NDArray[Any]]:
        count, step = prod(shape) // width, part_rows(max_rows, width)
        for first in range(0, count, step):
            rows = min(step, count - first)
            wanted = rows * width * dtype.itemsize
            last = first + rows == count
            data = _checked(name, shape, _read(name, stream, wanted + last), wanted, last=last)
            yield _in_range(np.frombuffer(data, dtype).reshape(rows, width), name, first)

    return Rows(name, parts, shape)


def _read(name: str, stream: IO[bytes], size: int) -> bytes:
    """In pieces: a header may promise more than the file holds, and an archive may unpack to more than it promises."""
    pieces = []
    try:
        while size > 0 and (piece := stream.read(min(size, _PIECE))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)
    except _READ_ERRORS as error:
        raise InputError(f"{name}: cannot be read to its end: {shorten(str(error), 120)}") from None


def _checked(name: str, shape: tuple[int, ...], data: bytes, wanted: int, *, last: bool) -> bytes:
    if len(data) < wanted:
        raise InputError(f"{name}: expected an array of shape {shape}, got a file that ends early")
    if last and len(data) > wanted:
        raise InputError(f"{name}: expected one array of shape {shape}, got more data after it")
    return data


def _in_range(part: NDArray[Any], name: str, first_row: int) -> NDArray[Any]:
    """Refuses a finite number that would become infinite in float32."""
    if part.dtype.kind == "f" and part.dtype.itemsize > np.dtype(np.float32).itemsize:
        with np.errstate(over="ignore"):
            beyond = np.isinf(part.astype(np.float32)) & np.isfinite(part)
        if beyond.any():
            row, column = np.argwhere(beyond)[0]
            raise InputError(
                f"{name}, row {first_row + row + 1}, column {column + 1}: expected a number that fits float32, "
                f"got {part[row, column]:g}"
            )
    return part
