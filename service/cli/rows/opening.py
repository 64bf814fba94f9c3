# SPDX-License-Identifier: Apache-2.0
"""Opens a file or stdin as rows. The content tells the format: .npy, .npz, JSON, JSON Lines, or numbers separated by
commas, semicolons, tabs or spaces."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.cli.rows.array_file import NPY_MAGIC, ZIP_MAGIC, open_npy, open_npz
from fused_mlp.service.cli.rows.json_text import JsonLines, open_json
from fused_mlp.service.cli.rows.lines import Lines
from fused_mlp.service.cli.rows.source import InputError, Rows
from fused_mlp.service.cli.rows.table import TableRows

_BUFFER_BYTES = 1 << 16
_LINE_SUFFIXES = (".jsonl", ".ndjson")
_BOM = b"\xef\xbb\xbf"


@contextmanager
def open_rows(source: str) -> Iterator[Rows]:
    """`source` is a path, or `-` for stdin. Raises InputError."""
    name = "stdin" if source == "-" else source
    with ExitStack() as opened:
        try:
            # Buffered once more: the head of a pipe has to be seen without taking it.
            file: Any = sys.stdin.buffer if source == "-" else opened.enter_context(Path(source).open("rb"))
            stream: io.BufferedReader = io.BufferedReader(file, _BUFFER_BYTES)
            head = stream.peek(_BUFFER_BYTES)
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}") from None
        yield _recognise(name, stream, head.removeprefix(_BOM).lstrip())


def _recognise(name: str, stream: io.BufferedReader, head: bytes) -> Rows:
    if head.startswith(NPY_MAGIC):
        return open_npy(name, stream)
    if head.startswith(ZIP_MAGIC):
        return open_npz(name, stream)
    if not head:
        raise InputError(f"{name} is empty: expected rows of numbers")
    lines = Lines(name, stream)
    if head.startswith(b"{") or (head.startswith(b"[") and name.lower().endswith(_LINE_SUFFIXES)):
        return JsonLines(name, lines)
    return open_json(name, lines) if head.startswith(b"[") else TableRows(name, lines)


def read_rows(source: str) -> NDArray[Any]:
    """All rows at once: (rows, width), or an array in its own shape. Raises InputError."""
    with open_rows(source) as rows:
        if rows.shape is None:
            return np.concatenate(list(rows.parts(sys.maxsize, 0)))
        if 0 in rows.shape or not rows.shape:
            raise InputError(f"{rows.name}: expected rows of numbers, got an array of shape {rows.shape}")
        return np.concatenate(list(rows.parts(sys.maxsize, rows.shape[-1]))).reshape(rows.shape)
