# SPDX-License-Identifier: Apache-2.0
"""Delimited text: a row on each line, cells separated by commas, semicolons, tabs or spaces, as the first line has it.
A first line without any number is a header. A cell that is empty or no number is refused, never skipped: the columns
after it would shift. `nan` and `inf` are numbers."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.cli.rows.lines import Lines
from fused_mlp.service.cli.rows.source import InputError, fits_float32, part_rows, shorten

# A first row of these alone is no header: it is a row whose values are missing.
_MISSING = frozenset(("", "na", "n/a", "#n/a", "null", "none", "-", "?", "."))
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"')
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


class TableRows:
    shape: tuple[int, ...] | None = None

    def __init__(self, name: str, lines: Lines) -> None:
        self.name = name
        self._lines = lines
        self._header: list[str] = []

    def share_read(self) -> float | None:
        return self._lines.share_read()

    def parts(self, most_rows: int, width: int) -> Iterator[NDArray[Any]]:
        part: list[NDArray[np.float32]] = []
        columns = first_line = 0
        rows = 0
        for cells in self._cells():
            if not columns:
                columns, first_line = len(cells), self._lines.number
                if _is_header(cells):
                    self._header = cells
                    continue
            if len(cells) != columns:
                self._refuse(f"expected {columns} columns as on line {first_line}, got {len(cells)}")
            part.append(self._numbers(cells))
            rows += 1
            if len(part) == part_rows(most_rows, columns):
                yield np.stack(part)
                part = []
        if not rows:
            raise InputError(f"{self.name}: expected rows of numbers after the header, got none")
        if part:
            yield np.stack(part)

    def _cells(self) -> Iterator[list[str]]:
        """The cells of each line that is not blank."""
        first = self._lines.next_filled()
        self._lines.put_back(first, self._lines.number)
        delimiter = _delimiter(first)
        rows: Iterator[list[str]] = (
            csv.reader(self._lines, delimiter=delimiter, skipinitialspace=True, strict=True)
            if delimiter
            else (line.split() for line in self._lines)
        )
        columns = blank = 0
        while True:
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                self._refuse(f"cannot be split into cells: {error}")
            if not cells or (columns > 1 and len(cells) == 1 and not cells[0].strip()):
                blank = self._lines.number
                continue
            columns = columns or len(cells)
            if columns == 1 and blank:
                # With one column an empty line may be a missing value; the rows after it would shift.
                raise InputError(f"{self.name}, line {blank}: expected a number, got an empty line")
            yield cells

    def _numbers(self, cells: list[str]) -> NDArray[np.float32]:
        try:
            numbers = list(map(float, cells))
        except ValueError:
            numbers = []
        joined = "".join(cells)
        # Python reads 1_000 and digits of other scripts as numbers; no other program does.
        if not numbers or "_" in joined or not joined.isascii() or not fits_float32(numbers):
            numbers = [self._number(cell.strip(), column) for column, cell in enumerate(cells, 1)]
        return np.array(numbers, np.float32)

    def _number(self, text: str, column: int) -> float:
        if _NOT_FINITE.fullmatch(text):
            return float(text)
        name = f" ({shorten(repr(self._header[column - 1]))})" if self._header else ""
        if not _is_number(text):
            got = repr(shorten(text)) if text else "an empty cell"
            self._refuse(f"expected a number, got {got}{_hint(text)}", f", column {column}{name}")
        if not fits_float32([float(text)]):
            self._refuse(
                f"expected a number that fits float32, got {shorten(text)}", f", column {column}{name}"
            )
        return float(text)

    def _refuse(self, problem: str, where: str = "") -> NoReturn:
        raise InputError(f"{self.name}, line {self._lines.number}{where}: {problem}")


def _is_header(cells: list[str]) -> bool:
    """Whether no cell is a number, and some are names."""
    texts = [cell.strip() for cell in cells]
    return not any(map(_is_number, texts)) and any(text.lower() not in _MISSING for text in texts)


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
    """Empty for spaces. Tabs count as spaces on a line whose cells would hold several numbers."""
    for delimiter in ";,":
        if delimiter in _QUOTED.sub("", line):
            return delimiter
    cells = [cell.split() for cell in line.split("\t")]
    if len(cells) > 1 and not any(len(words) > 1 and all(map(_is_number, words)) for words in cells):
        return "\t"
    return "," if '"' in line else ""
