# SPDX-License-Identifier: Apache-2.0
"""Writes outputs to a file, part by part; the file's name tells the format. The rows go to a temporary file beside it,
which gets the name once it is complete: a partial file is never visible under that name."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.client.prediction import ONLY_OUTPUT

STDOUT = Path("-")
SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".json", ".jsonl", ".ndjson")
_ONE_ARRAY = (".npy", ".csv", ".tsv")
# (rows, width), or all outputs by name, each (rows, width) or (rows,).
Outputs: TypeAlias = "NDArray[Any] | Mapping[str, NDArray[Any]]"


class OutputError(Exception):
    """The outputs cannot be written. The text says why, in one line."""


class Writer(Protocol):
    def write(self, rows: Any) -> None:
        """rows: Outputs; (rows, width) where the format holds one array."""

    def finish(self) -> None:
        """Called after the last row."""


class _CsvWriter:
    """Writes no header: the names of outputs can be numbers (those of the digits model are)."""

    def __init__(self, file: IO[bytes], delimiter: str) -> None:
        self._file, self._delimiter = file, delimiter

    def write(self, rows: NDArray[Any]) -> None:
        text = io.StringIO()
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerows(_shortest(rows))
        self._file.write(text.getvalue().encode())

    def finish(self) -> None:
        """Nothing follows the rows."""


class _JsonWriter:
    """A list with a row on each line, or JSON Lines."""

    def __init__(self, file: IO[bytes], lines: bool) -> None:
        self._file = file
        self._next, self._between, self._after, self._end = (
            ("", "", "\n", "") if lines else ("[\n", ",\n", "", "\n]\n")
        )

    def write(self, rows: Outputs) -> None:
        for row in _json_rows(rows):
            self._file.write(f"{self._next}{json.dumps(row)}{self._after}".encode())
            self._next = self._between
        self._file.flush()  # a program may read JSON Lines from a pipe

    def finish(self) -> None:
        self._file.write(self._end.encode())


class _NpyWriter:
    """`leading`: the dimensions before the last; None to count the rows. The header is written again at the end, when
    their number is known: numpy leaves room for it."""

    def __init__(self, file: IO[bytes], leading: tuple[int, ...] | None) -> None:
        self._file, self._leading = file, leading
        self._rows = 0

    def write(self, rows: NDArray[Any]) -> None:
        if not self._rows:
            self._last = rows
            self._write_header()
        self._rows += len(rows)
        self._file.write(rows.tobytes())

    def finish(self) -> None:
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        shape = (*((self._rows,) if self._leading is None else self._leading), self._last.shape[1])
        fields = {"descr": self._last.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, fields)


class _NpzWriter:
    """An array for each output, `output` where only one was asked for. They are kept in memory until the end: the
    arrays follow one another in the file."""

    def __init__(self, file: IO[bytes], leading: tuple[int, ...] | None) -> None:
        self._file, self._leading = file, leading
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def write(self, rows: Outputs) -> None:
        for name, part in (rows if isinstance(rows, Mapping) else {ONLY_OUTPUT: rows}).items():
            self._parts.setdefault(name, []).append(part)

    def finish(self) -> None:
        # Not np.savez: the name of an output may be one of its arguments.
        with ZipFile(self._file, "w") as archive:
            for name, parts in self._parts.items():
                array = np.concatenate(parts)
                shape = array.shape if self._leading is None else (*self._leading, *array.shape[1:])
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array.reshape(shape), allow_pickle=False)


def check_output(path: Path | None, source: str | None, all_outputs: bool = False) -> None:
    """Raises OutputError for failures that can be foreseen before any work."""
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
        raise OutputError(f"{path}: is also the input; give the outputs another name")


@contextmanager
def open_output(path: Path | None, leading: tuple[int, ...] | None) -> Iterator[Writer | None]:
    """Gives the file its name on leaving without an error, and removes the temporary file on leaving with one. Signals
    that end the process raise such errors (interruption.py)."""
    if path is None:
        yield None
        return
    if path == STDOUT:
        try:
            yield _JsonWriter(sys.stdout.buffer, lines=True)
        except BrokenPipeError:
            os._exit(1)  # the reader has closed the pipe; Python would complain when it closes stdout
        return
    path = Path(os.path.realpath(path))  # a link stays a link
    temporary = path.with_name(f".fused-mlp-{secrets.token_hex(6)}.part")
    file = temporary.open("xb")
    try:
        if path.exists():
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
        writer = _make_writer(path.suffix.lower(), file, leading)
        yield writer
        writer.finish()
        file.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        with suppress(OSError):  # close flushes again what a full disk refused
            file.close()


def finite(value: Any) -> Any:
    """JSON has no NaN or Infinity: they become strings, as in protobuf's JSON."""
    if isinstance(value, list):
        return [finite(item) for item in value]
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def _make_writer(suffix: str, file: IO[bytes], leading: tuple[int, ...] | None) -> Writer:
    match suffix:
        case ".npy":
            return _NpyWriter(file, leading)
        case ".npz":
            return _NpzWriter(file, leading)
        case ".csv" | ".tsv":
            return _CsvWriter(file, "," if suffix == ".csv" else "\t")
        case _:
            return _JsonWriter(file, lines=suffix != ".json")


def _shortest(rows: NDArray[Any]) -> list[Any]:
    """Nested lists of float64 that print as the shortest text which reads back as the same number in the type of
    `rows`."""
    numbers: list[Any] = rows.astype("U32").astype(np.float64).tolist()
    return numbers


def _json_rows(rows: Outputs) -> list[Any]:
    """A list for each row, or an object: {"pi": [0.25, 0.75], "v": 0.5}."""
    if not isinstance(rows, Mapping):
        return list(map(finite, _shortest(rows)))
    columns = [map(finite, _shortest(head)) for head in rows.values()]
    return [dict(zip(rows, values, strict=True)) for values in zip(*columns, strict=True)]
