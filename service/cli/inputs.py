"""Rows of numbers from a file or from stdin. The content tells the format: .npy, JSON, or numbers separated by commas
or whitespace, with an optional header line."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NPY_MAGIC = b"\x93NUMPY"
_SEPARATOR = re.compile(r"[,;\s]+")


class InputError(Exception):
    """The input is not rows of numbers. The text says where."""


def read_rows(source: str) -> NDArray[Any]:
    """`source` is a path, or `-` for stdin. Returns (rows, width), or (width,) if the data has one dimension."""
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise InputError(f"{source}: {error.strerror or error}") from None
    name = "stdin" if source == "-" else source
    if not data.strip():
        raise InputError(f"{name} is empty: expected rows of numbers")
    try:
        return parse_rows(data)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def parse_rows(data: bytes) -> NDArray[Any]:
    if data.startswith(_NPY_MAGIC):
        return _from_npy(data)
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise InputError("expected .npy, JSON or numbers as text, got other binary data") from None
    return _from_json(text) if text[0] in "[{" else _from_lines(text)


def _from_npy(data: bytes) -> NDArray[Any]:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InputError(f"not a readable .npy array: {error}") from None
    assert isinstance(array, np.ndarray)
    if array.dtype.kind not in "fiub":
        raise InputError(f"expected an array of numbers, got dtype {array.dtype}")
    return array


def _from_json(text: str) -> NDArray[Any]:
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise InputError(f"not valid JSON: {error}") from None
    if not isinstance(rows, list):
        raise InputError("expected a JSON list of numbers, or of rows: [[1, 2], [3, 4]]")
    try:
        return np.array(rows, np.float32)
    except (TypeError, ValueError):
        raise InputError("expected JSON rows of numbers, all of one length") from None


def _from_lines(text: str) -> NDArray[Any]:
    rows: list[list[float]] = []
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in lines:
        cells = [cell for cell in _SEPARATOR.split(line.strip()) if cell]
        try:
            row = [float(cell) for cell in cells]
        except ValueError as error:
            if not rows and len(lines) > 1 and number == lines[0][0]:
                continue  # a header
            raise InputError(f"line {number}: {error}") from None
        if rows and len(row) != len(rows[0]):
            raise InputError(f"line {number}: expected {len(rows[0])} numbers as before, got {len(row)}")
        rows.append(row)
    return np.array(rows, np.float32)
