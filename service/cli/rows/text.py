# SPDX-License-Identifier: Apache-2.0
"""Rows of text. Delimited: cells separated by commas, semicolons, tabs or spaces, as on the first line; a first line
without any number is a header. An empty cell is refused, never skipped: the columns after it would shift.
JSON: one document, or on each line a row, `[1, 2]` or `{"input": [1, 2]}`. As in protobuf's JSON, "NaN",
"Infinity" and "-Infinity" are numbers; the bare words are too."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.cli.rows.source import InputError, fits_float32, shorten

# A first row of only these is a row with missing values, not a header.
_MISSING = frozenset(("", "na", "n/a", "#n/a", "null", "none", "-", "?", "."))
_QUOTED = re.compile(r'"[^"]*"')
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_JSON_WORDS = ("NaN", "Infinity", "-Infinity")


def read_lines(name: str, stream: io.BufferedReader) -> Iterator[tuple[int, str]]:
    """Yields each line that is not blank, with its number."""
    for number in itertools.count(1):
        try:
            # Spreadsheets begin a file with a byte order mark, which utf-8-sig drops.
            line = stream.readline().decode("utf-8" if number > 1 else "utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(
                f"{name}, line {number}: expected .npy, .npz, JSON or numbers as UTF-8 text, got other binary data"
            ) from None
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}") from None
        if not line:
            return
        if line.strip():
            yield number, line


def table_cells(name: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, list[str]]]:
    """Yields where each row is, and its cells."""
    number = columns = first_number = 0

    def texts() -> Iterator[str]:
        nonlocal number
        for found, text in lines:
            if columns == 1 and found > number + 1:
                # With one column a blank line may be a missing value; the rows after it would shift.
                raise InputError(f"{name}, line {number + 1}: expected a number, got an empty line")
            number = found
            yield " ".join(text.split()) if delimiter == " " else text

    first = next(lines, (1, ""))
    delimiter = _delimiter(first[1])
    lines = itertools.chain([first], lines)
    rows = csv.reader(texts(), delimiter=delimiter, skipinitialspace=True, strict=True)
    while True:
        try:
            cells = [cell.strip() for cell in next(rows)]
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{name}, line {number}: cannot be split into cells: {error}") from None
        if not columns:
            columns, first_number = len(cells), number
        if len(cells) != columns:
            raise InputError(
                f"{name}, line {number}: expected {columns} columns as on line {first_number}, got {len(cells)}"
            )
        yield f"{name}, line {number}", cells


def table_rows(name: str, lines: Iterator[tuple[int, str]]) -> Iterator[NDArray[np.float32]]:
    header: list[str] = []
    rows = 0
    for where, cells in table_cells(name, lines):
        if not rows and not header and _is_header(cells):
            header = cells
            continue
        yield _cells_as_row(cells, where, header)
        rows += 1
    if not rows:
        raise InputError(f"{name}: expected rows of numbers after the header, got none")


def _is_header(cells: list[str]) -> bool:
    return not any(map(_is_number, cells)) and any(cell.lower() not in _MISSING for cell in cells)


def _cells_as_row(cells: list[str], where: str, header: list[str]) -> NDArray[np.float32]:
    try:
        numbers = list(map(float, cells))
    except ValueError:
        numbers = []
    joined = "".join(cells)
    # Python reads 1_000 and digits of other scripts as numbers; other programs do not.
    if not numbers or "_" in joined or not joined.isascii() or not fits_float32(numbers):
        names = [f" ({shorten(repr(name))})" for name in header] or [""] * len(cells)
        numbers = [_cell(cell, f"{where}, column {i}{names[i - 1]}") for i, cell in enumerate(cells, 1)]
    return np.array(numbers, np.float32)


def _cell(text: str, where: str) -> float:
    if not _is_number(text):
        got = repr(shorten(text)) if text else "an empty cell"
        raise InputError(f"{where}: expected a number, got {got}{_hint(text)}")
    if "n" not in text.lower() and not fits_float32([float(text)]):  # nan and inf are meant
        raise InputError(f"{where}: expected a number that fits float32, got {shorten(text)}")
    return float(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text.isascii()


def _hint(text: str) -> str:
    if _DECIMAL_COMMA.fullmatch(text):
        return "; write decimals with a point"
    return "; write nan if the model takes missing values" if text.lower() in _MISSING else ""


def _delimiter(line: str) -> str:
    """A space where tabs count as spaces too: on a line whose cells would hold several numbers."""
    for delimiter in ";,":
        if delimiter in _QUOTED.sub("", line):
            return delimiter
    cells = [cell.split() for cell in line.split("\t")]
    if len(cells) > 1 and not any(len(words) > 1 and all(map(_is_number, words)) for words in cells):
        return "\t"
    return "," if '"' in line else " "


def parse_json(text: str, where: str) -> Any:
    """The bare words NaN and Infinity become strings, so an infinite number is one that was too large."""
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON: {error}") from None


def json_lines(name: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, Any]]:
    """Yields where each value is, and the value."""
    for number, line in lines:
        where = f"{name}, line {number}"
        yield where, parse_json(line, where)


def json_rows(values: Iterator[tuple[str, Any]]) -> Iterator[NDArray[np.float32]]:
    columns = 0
    for where, given in values:
        value = given
        if isinstance(given, dict):
            if "input" not in given:
                raise InputError(
                    f'{where}: expected a row as [1, 2] or {{"input": [1, 2]}}, got {_show(given)}'
                )
            value = given["input"]
        if not isinstance(value, list) or not value or isinstance(value[0], list):
            raise InputError(f"{where}: expected a list of numbers, got {_show(value)}")
        columns = columns or len(value)
        if len(value) != columns:
            raise InputError(f"{where}: expected {columns} numbers as on the lines before, got {len(value)}")
        yield json_array(value, where)


def json_array(value: list[Any], where: str) -> NDArray[np.float32]:
    """The numbers of a list, or of nested lists of one length."""
    given = np.array(value, object)
    if not set(map(type, given.flat)) <= {int, float} or not fits_float32(given.ravel().tolist()):
        for index, item in np.ndenumerate(given):
            rows = "".join(f", row {i + 1}" for i in index[:-1])
            given[index] = _json_number(item, where + rows, index[-1] + 1)
    return given.astype(np.float32)


def _json_number(item: Any, where: str, column: int) -> float:
    if item in _JSON_WORDS:
        return float(item)
    if isinstance(item, list):
        raise InputError(
            f"{where}: expected JSON rows of numbers, all of one length, got {_show(item)} at place {column}"
        )
    if type(item) not in (int, float):  # bool is an int to Python
        raise InputError(f"{where}, column {column}: expected a number, got {_show(item)}")
    if not fits_float32([item]):
        raise InputError(f"{where}, column {column}: expected a number that fits float32, got {_show(item)}")
    return float(item)


def _show(value: Any) -> str:
    return shorten(json.dumps(value))
