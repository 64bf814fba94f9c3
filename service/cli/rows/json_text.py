# SPDX-License-Identifier: Apache-2.0
"""JSON: one document (a row, a list of rows, or lists nested deeper), read whole; or JSON Lines, read part by part:
on each line a row, `[1, 2]`, or an object that holds one, `{"input": [1, 2]}`. As in protobuf's JSON, "NaN",
"Infinity" and "-Infinity" are numbers; the bare words are taken too."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.cli.rows.lines import Lines
from fused_mlp.service.cli.rows.source import InputError, MemoryRows, Rows, fits_float32, part_rows, shorten

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class JsonLines:
    shape: tuple[int, ...] | None = None

    def __init__(self, name: str, lines: Lines) -> None:
        self.name = name
        self._lines = lines

    def share_read(self) -> float | None:
        return self._lines.share_read()

    def parts(self, most_rows: int, width: int) -> Iterator[NDArray[Any]]:
        part: list[NDArray[np.float32]] = []
        columns = 0
        while line := self._lines.next_filled():
            row = self._row(line)
            columns = columns or len(row)
            if len(row) != columns:
                self._refuse(f"expected {columns} numbers as on the lines before, got {len(row)}")
            part.append(row)
            if len(part) == part_rows(most_rows, columns):
                yield np.stack(part)
                part = []
        if part:
            yield np.stack(part)

    def _row(self, line: str) -> NDArray[np.float32]:
        where = f"{self.name}, line {self._lines.number}"
        value = _parse(line, where)
        if isinstance(value, dict):
            if "input" not in value:
                self._refuse(f'expected a row as [1, 2] or {{"input": [1, 2]}}, got {_show(value)}')
            value = value["input"]
        if not isinstance(value, list) or not value:
            self._refuse(f"expected a list of numbers, got {_show(value)}")
        return _numbers(value, where)

    def _refuse(self, problem: str) -> NoReturn:
        raise InputError(f"{self.name}, line {self._lines.number}: {problem}")


def open_json(name: str, lines: Lines) -> Rows:
    """Text that begins with `[`: JSON Lines if its first line is complete and others follow, else a document."""
    first = lines.next_filled()
    number = lines.number
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return MemoryRows(name, _array(_parse(first + "".join(lines), name), name))
    if not (second := lines.next_filled()):
        return MemoryRows(name, _array(_parse(first, name), name))
    lines.put_back(first, number)
    lines.put_back(second, lines.number)
    return JsonLines(name, lines)


def _parse(text: str, where: str) -> Any:
    """The words NaN and Infinity become strings: a number that is infinite then was too large to be read."""
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON: {error}") from None


def _array(value: list[Any], name: str) -> NDArray[np.float32]:
    shape = []
    probe: Any = value
    while isinstance(probe, list):
        shape.append(len(probe))
        probe = probe[0] if probe else None
    rows: list[NDArray[np.float32]] = []
    _collect(value, shape, name, rows)
    return np.concatenate([np.empty(0, np.float32), *rows]).reshape(shape)


def _collect(value: Any, shape: list[int], where: str, rows: list[NDArray[np.float32]]) -> None:
    if not isinstance(value, list) or len(value) != shape[0]:
        got = len(value) if isinstance(value, list) else _show(value)
        raise InputError(f"{where}: expected JSON rows of numbers, all of one length ({shape[0]}), got {got}")
    if len(shape) == 1:
        rows.append(_numbers(value, where))
        return
    for index, item in enumerate(value, 1):
        _collect(item, shape[1:], f"{where}, row {index}", rows)


def _numbers(row: list[Any], where: str) -> NDArray[np.float32]:
    if set(map(type, row)) <= {int, float} and fits_float32(row):
        return np.array(row, np.float32)
    return np.array([_number(item, f"{where}, column {i}") for i, item in enumerate(row, 1)], np.float32)


def _number(item: Any, where: str) -> float:
    if isinstance(item, str) and item in _SPECIAL:
        return _SPECIAL[item]
    if type(item) not in (int, float):  # nor bool, which is an int to Python
        raise InputError(f"{where}: expected a number, got {_show(item)}")
    if not fits_float32([item]):
        raise InputError(f"{where}: expected a number that fits float32, got {_show(item)}")
    return float(item)


def _show(value: Any) -> str:
    return shorten(json.dumps(value))
