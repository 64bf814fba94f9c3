# SPDX-License-Identifier: Apache-2.0
"""Outputs into a file, part by part; the file's name tells the format. The rows go into a temporary file beside it,
which takes its name when all are there: so a partial file is never visible under that name."""

from __future__ import annotations

import json
import os
import secrets
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self, TypeAlias
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.client.prediction import ONLY_OUTPUT

STDOUT = Path("-")
_NPY_HEADER_BYTES = 512  # enough for the longest shape that numpy has, of 64 dimensions
_JSON_WORDS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


class OutputError(Exception):
    """The outputs cannot be written. The text says why, in one line."""


# (rows, width), or all outputs by name, each (rows, width) or (rows,).
Outputs: TypeAlias = "NDArray[Any] | Mapping[str, NDArray[Any]]"


class Writer(Protocol):
    def write(self, rows: Any) -> bytes:
        """rows: Outputs; (rows, width) alone where the format holds one array -> what to append."""

    def end(self) -> tuple[bytes, bytes]:
        """What to append after the last row, and what to write over the beginning."""


class DelimitedWriter:
    """CSV and TSV without a header: the names of outputs can be numbers (the digits model's are)."""

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter

    def write(self, rows: NDArray[Any]) -> bytes:
        return "".join(f"{self._delimiter.join(row)}\n" for row in _texts(rows)).encode()

    def end(self) -> tuple[bytes, bytes]:
        return b"", b""


class JsonLinesWriter:
    def write(self, rows: Outputs) -> bytes:
        return "".join(f"{row}\n" for row in _json_rows(rows)).encode()

    def end(self) -> tuple[bytes, bytes]:
        return b"", b""


class JsonWriter:
    """A list of rows, one on each line."""

    def __init__(self) -> None:
        self._separator = "[\n"

    def write(self, rows: Outputs) -> bytes:
        text = self._separator + ",\n".join(_json_rows(rows))
        self._separator = ",\n"
        return text.encode()

    def end(self) -> tuple[bytes, bytes]:
        return b"\n]\n", b""


class NpyWriter:
    """`leading`: the dimensions before the last; None for as many rows as come. The header is written last, because
    the number of rows is not known before."""

    def __init__(self, leading: tuple[int, ...] | None) -> None:
        self._leading = leading
        self._rows = self._width = 0
        self._dtype = np.dtype(np.float32)

    def write(self, rows: NDArray[Any]) -> bytes:
        room = b"" if self._rows else bytes(_NPY_HEADER_BYTES)
        self._rows += len(rows)
        self._width, self._dtype = rows.shape[1], rows.dtype
        return room + rows.tobytes()

    def end(self) -> tuple[bytes, bytes]:
        shape = (*((self._rows,) if self._leading is None else self._leading), self._width)
        fields = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        start = b"\x93NUMPY\x01\x00" + (_NPY_HEADER_BYTES - 10).to_bytes(2, "little")
        header = start + repr(fields).encode()
        return b"", header.ljust(_NPY_HEADER_BYTES - 1) + b"\n"


class NpzWriter:
    """An array for each output, `output` where only one was asked for. Kept in memory until all rows are there: the
    arrays follow one another in the file."""

    def __init__(self, leading: tuple[int, ...] | None) -> None:
        self._leading = leading
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def write(self, rows: Outputs) -> bytes:
        for name, part in (rows if isinstance(rows, Mapping) else {ONLY_OUTPUT: rows}).items():
            self._parts.setdefault(name, []).append(part)
        return b""

    def end(self) -> tuple[bytes, bytes]:
        file = BytesIO()
        # Not np.savez: an output may be called like one of its arguments.
        with ZipFile(file, "w") as archive:
            for name, parts in self._parts.items():
                array = np.concatenate(parts)
                if self._leading is not None:
                    array = array.reshape(*self._leading, *array.shape[1:])
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        return file.getvalue(), b""


SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".json", ".jsonl", ".ndjson")
_ONE_ARRAY = (".npy", ".csv", ".tsv")


def make_writer(path: Path, leading: tuple[int, ...] | None) -> Writer:
    match path.suffix.lower():
        case ".npy":
            return NpyWriter(leading)
        case ".npz":
            return NpzWriter(leading)
        case ".csv":
            return DelimitedWriter(",")
        case ".tsv":
            return DelimitedWriter("\t")
        case ".json":
            return JsonWriter()
        case _:
            return JsonLinesWriter()


def check_output(path: Path | None, source: str | None, all_outputs: bool = False) -> None:
    """Raises OutputError for what can be known to fail before any work."""
    if path is None or path == STDOUT:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise OutputError(
            f"{path}: expected a name that ends in {', '.join(SUFFIXES)}, or - for JSON Lines on stdout"
        )
    if all_outputs and path.suffix.lower() in _ONE_ARRAY:
        raise OutputError(
            f"{path}: holds one output; give --output-name a name, or write all to .npz, .json or .jsonl"
        )
    if path.exists() and not path.is_file():
        raise OutputError(f"{path}: is not a regular file")
    if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
        raise OutputError(f"{path}: is the input, too; give the outputs another name")


def open_output(path: Path | None, leading: tuple[int, ...] | None) -> OutputFile | StandardOutput | NoOutput:
    if path is None:
        return NoOutput()
    return StandardOutput() if path == STDOUT else OutputFile(path, leading)


class OutputFile:
    """A context: leaving it without an error gives the file its name, leaving it with one removes what was written.
    Signals that end the process are such errors (interruption.py)."""

    def __init__(self, path: Path, leading: tuple[int, ...] | None) -> None:
        self._path = Path(os.path.realpath(path))  # a link stays a link
        self._writer = make_writer(path, leading)
        self._temporary = self._path.with_name(f".fused-mlp-{secrets.token_hex(6)}.part")

    def __enter__(self) -> Self:
        self._file: IO[bytes] = self._temporary.open("xb")
        if self._path.exists():
            os.fchmod(self._file.fileno(), stat.S_IMODE(self._path.stat().st_mode))
        return self

    def write(self, rows: Outputs) -> None:
        self._file.write(self._writer.write(rows))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._temporary.unlink(missing_ok=True)
            with suppress(OSError):  # what a full disk did not take is flushed once more
                self._file.close()

    def _finish(self) -> None:
        end, beginning = self._writer.end()
        self._file.write(end)
        self._file.seek(0)
        self._file.write(beginning)
        self._file.close()
        self._temporary.replace(self._path)


class NoOutput:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def write(self, rows: Outputs) -> None:
        """Nothing to write."""


class StandardOutput(NoOutput):
    """JSON Lines on stdout."""

    def write(self, rows: Outputs) -> None:
        try:
            sys.stdout.write(JsonLinesWriter().write(rows).decode())
            sys.stdout.flush()
        except BrokenPipeError:
            os._exit(1)  # the reader has seen enough; Python would complain when it closes stdout


def _texts(rows: NDArray[Any]) -> list[Any]:
    """The shortest text of each number that reads back as the same number, in lists as `rows` is."""
    texts: list[Any] = rows.astype("U32").tolist()
    return texts


def _json_rows(rows: Outputs) -> list[str]:
    """A list for each row, or an object: {"pi": [0.25, 0.75], "v": 0.5}."""
    if not isinstance(rows, Mapping):
        return [_json_row(row) for row in _texts(rows)]
    heads = []
    for name, head in rows.items():
        key = json.dumps(name)
        heads.append([f"{key}: {_json_row(value)}" for value in _texts(head)])
    return [f"{{{', '.join(pairs)}}}" for pairs in zip(*heads, strict=True)]


def _json_row(row: list[str] | str) -> str:
    if isinstance(row, str):
        return _JSON_WORDS.get(row, row)
    return f"[{', '.join(_JSON_WORDS.get(text, text) for text in row)}]"
