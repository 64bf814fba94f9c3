# SPDX-License-Identifier: Apache-2.0
"""Rows of a model with named inputs, in parts that map names to arrays. Delimited text with a header: a column for each
input, `x.0`, `x.1`, ... for the values of one input, or all of them in one cell with spaces between; other columns are
ignored. JSON: an object for each row, on its own line or in a list."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.cli.rows.source import InputError, part_rows, shorten
from fused_mlp.service.client import InputInfo

_ABSENT = -1  # fills up ragged rows


def named_parts(
    name: str, objects: Iterator[tuple[str, Any]], inputs: Sequence[InputInfo], max_rows: int
) -> Iterator[dict[str, NDArray[Any]]]:
    """`objects`: where each row is, and its values by input."""
    first = next(objects, None)
    if first is None:
        names = ", ".join(each.name for each in inputs)
        raise InputError(f"{name}: expected rows with the inputs {names}, got none")
    step = part_rows(max_rows, sum(prod(each.shape) for each in inputs))
    objects = itertools.chain([first], objects)
    rows = ({each.name: _values(each, row, where) for each in inputs} for where, row in objects)
    while part := list(itertools.islice(rows, step)):
        yield {each.name: _array(each, [row[each.name] for row in part]) for each in inputs}


def table_objects(
    name: str, table: Iterator[tuple[str, list[str]]], inputs: Sequence[InputInfo]
) -> Iterator[tuple[str, dict[str, list[str]]]]:
    _, header = next(table, ("", []))
    columns = {each.name: _columns(name, each, header) for each in inputs}
    for where, cells in table:
        yield (
            where,
            {
                each.name: [
                    text
                    for column in columns[each.name]
                    for text in (
                        cells[column].split() if each.shape and each.kind != "string" else [cells[column]]
                    )
                ]
                for each in inputs
            },
        )


def _columns(name: str, each: InputInfo, header: list[str]) -> list[int]:
    if each.name in header:
        return [header.index(each.name)]
    wanted = [f"{each.name}.{i}" for i in range(prod(each.shape))]
    if all(column in header for column in wanted):
        return [header.index(column) for column in wanted]
    expected = each.name if not each.shape else f"{each.name}, or {wanted[0]} to {wanted[-1]}"
    raise InputError(
        f"{name}: expected a column {expected} in the header, got {shorten(', '.join(header), 80)}"
    )


def _values(each: InputInfo, row: Any, where: str) -> list[Any]:
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: expected an object with the inputs of a row, got {shorten(repr(row))}")
    if each.name not in row:
        got = shorten(", ".join(map(str, row)), 80)
        raise InputError(f"{where}: expected the input {each.name!r}, got {got}")
    given = np.array(row[each.name], object).reshape(-1).tolist()
    floats = each.datatype.startswith(("FP", "BF"))
    values = []
    for value in given:
        try:
            values.append(str(value) if each.kind == "string" else float(value) if floats else int(value))
        except (TypeError, ValueError):
            wanted = "a number" if each.kind == "float" else "a whole number"
            got = shorten(repr(value))
            raise InputError(f"{where}, input {each.name!r}: expected {wanted}, got {got}") from None
    if not each.ragged and len(values) != prod(each.shape):
        raise InputError(
            f"{where}, input {each.name!r}: expected {prod(each.shape)} values, got {len(values)}"
        )
    return values


def _array(each: InputInfo, rows: list[list[Any]]) -> NDArray[Any]:
    """(rows, values); rows of a ragged input are filled up."""
    width = max(map(len, rows))
    filled = [[*row, *[_ABSENT] * (width - len(row))] for row in rows]
    floats = each.datatype.startswith(("FP", "BF"))
    return np.array(filled, object if each.kind == "string" else np.float32 if floats else np.int64)
