# SPDX-License-Identifier: Apache-2.0
"""Opens a file or stdin as rows. The content tells the format: .npy, .npz, JSON, JSON Lines, or numbers separated by
commas, semicolons, tabs or spaces."""

from __future__ import annotations

import io
import itertools
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.cli.rows.arrays import NPY_MAGIC, ZIP_MAGIC, array_rows, open_npy, open_npz
from fused_mlp.service.cli.rows.named import named_parts, table_objects
from fused_mlp.service.cli.rows.source import InputError, Rows, rows_of_text
from fused_mlp.service.cli.rows.text import (
    json_array,
    json_lines,
    json_rows,
    parse_json,
    read_lines,
    table_cells,
    table_rows,
)
from fused_mlp.service.client import InputInfo

_BUFFER_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"


@contextmanager
def open_rows(source: str, find_inputs: Callable[[], Sequence[InputInfo]] = tuple) -> Iterator[Rows]:
    """`source` is a path, or `-` for stdin. `find_inputs` returns the model's named inputs; it is called once the file
    is open. Raises InputError."""
    name = "stdin" if source == "-" else source
    with ExitStack() as opened:
        try:
            # A second buffer lets `peek` see the start of a pipe without consuming it.
            file: Any = sys.stdin.buffer if source == "-" else opened.enter_context(Path(source).open("rb"))
            stream = io.BufferedReader(file, _BUFFER_BYTES)
            head = stream.peek(_BUFFER_BYTES).removeprefix(_BOM).lstrip()
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}") from None
        inputs = find_inputs()
        if not head:
            raise InputError(f"{name} is empty: expected rows of numbers")
        if not head.startswith((NPY_MAGIC, ZIP_MAGIC)):
            yield _open_text(name, stream, head, inputs)
        elif inputs:
            names = ", ".join(each.name for each in inputs)
            raise InputError(
                f"{name}: expected a table or JSON objects with the inputs {names}, got an array"
            )
        else:
            yield open_npy(name, stream) if head.startswith(NPY_MAGIC) else open_npz(name, stream)


def read_rows(source: str) -> NDArray[Any]:
    """All rows at once: (rows, width), or an array in its own shape. Raises InputError."""
    with open_rows(source) as rows:
        if rows.shape is None:
            return np.concatenate(list(rows.parts(sys.maxsize, 0)))
        if 0 in rows.shape or not rows.shape:
            raise InputError(f"{rows.name}: expected rows of numbers, got an array of shape {rows.shape}")
        return np.concatenate(list(rows.parts(sys.maxsize, rows.shape[-1]))).reshape(rows.shape)


def object_rows(name: str, objects: Sequence[Mapping[str, Any]], inputs: Sequence[InputInfo]) -> Rows:
    """Rows with named inputs that are in memory."""
    found = ((f"{name}, row {number}", row) for number, row in enumerate(objects, 1))
    return Rows(name, lambda max_rows, _: named_parts(name, found, inputs, max_rows))


def _open_text(name: str, stream: io.BufferedReader, head: bytes, inputs: Sequence[InputInfo]) -> Rows:
    lines = read_lines(name, stream)
    if head.startswith(b"[") and not name.lower().endswith((".jsonl", ".ndjson")):
        first = next(lines)
        # JSON Lines if the first line is complete and others follow, else one document.
        second = None if inputs or not _is_json(first[1]) else next(lines, None)
        lines = itertools.chain([first], [second] if second else [], lines)
        if second is None:
            document = parse_json("".join(text for _, text in lines), name)
            return (
                object_rows(name, document, inputs)
                if inputs
                else array_rows(name, json_array(document, name))
            )
    values = json_lines(name, lines) if head.startswith((b"[", b"{")) else None

    def parts(max_rows: int, _: int) -> Iterator[Any]:
        if inputs:
            objects = values or table_objects(name, table_cells(name, lines), inputs)
            return named_parts(name, objects, inputs, max_rows)
        return rows_of_text(json_rows(values) if values else table_rows(name, lines), max_rows)

    return Rows(name, parts, share_read=lambda: _share_read(stream))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _share_read(stream: io.BufferedReader) -> float | None:
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # no file behind the stream
        return None
    return stream.raw.tell() / status.st_size if stat.S_ISREG(status.st_mode) and status.st_size else None
