# SPDX-License-Identifier: Apache-2.0
"""Rows to predict: the error of a reader, how an array is laid out as rows, and the size of a request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A part is one request. Its size stays far below the message limit of any server, which is at least 4 MiB.
_PART_BYTES = 1 << 20
_MAX_ELEMENT_BYTES = 8


class InputError(Exception):
    """The input cannot be read as rows. The text is one line: where, what was expected and what was found."""


@dataclass(frozen=True)
class Rows:
    """`parts(max_rows, width)` yields arrays of (rows, width), at most `max_rows` each, or dicts of arrays by input
    name; it raises InputError. Text has its own width and ignores the argument."""

    name: str
    parts: Callable[[int, int], Iterator[Any]]
    shape: tuple[int, ...] | None = None  # None for text: its rows are counted while they are read
    share_read: Callable[[], float | None] = lambda: None  # None: unknown


def rows_of_text(rows: Iterator[NDArray[np.float32]], max_rows: int) -> Iterator[NDArray[np.float32]]:
    """rows: arrays of (width,)."""
    for first in rows:
        step = part_rows(max_rows, len(first))
        rows = itertools.chain([first], rows)
        while part := list(itertools.islice(rows, step)):
            yield np.stack(part)


def part_rows(max_rows: int, width: int) -> int:
    return max(1, min(max_rows, _PART_BYTES // (_MAX_ELEMENT_BYTES * max(1, width))))


def leading_shape(shape: tuple[int, ...], width: int) -> tuple[int, ...] | None:
    """The dimensions in front of a row: the last dimensions whose product is `width` form one row. None if no
    such dimensions exist."""
    for first in reversed(range(len(shape))):
        if prod(shape[first:]) == width:
            return shape[:first]
    return None


def fits_float32(numbers: Sequence[float]) -> bool:
    """Whether all numbers are finite as float32."""
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.array(numbers, np.float64).astype(np.float32)).all())
    except OverflowError:  # an integer beyond float64
        return False


def shorten(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
