# SPDX-License-Identifier: Apache-2.0
"""What every reader of rows shares: the error it raises, how an array is laid out as rows, and the size of a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# A part is one request. Its bytes stay far below any server's message limit, which is at least 4 MiB.
_PART_BYTES = 1 << 20
_WIDEST_ELEMENT_BYTES = 8


class InputError(Exception):
    """The input is not rows of numbers. The text says what was expected, what came and where, in one line."""


class Rows(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...] | None:
        """That of an array; None for text, whose rows are counted as they come."""

    def parts(self, most_rows: int, width: int) -> Iterator[NDArray[Any]]:
        """Arrays of (rows, width), at most `most_rows` each. Text has a width of its own and ignores `width`.
        Raises InputError."""

    def share_read(self) -> float | None:
        """How much of a text was read; None where that is not known."""


@dataclass(frozen=True)
class MemoryRows:
    name: str
    array: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def parts(self, most_rows: int, width: int) -> Iterator[NDArray[Any]]:
        rows = np.ascontiguousarray(self.array).reshape(-1, width)
        step = part_rows(most_rows, width)
        for first in range(0, len(rows), step):
            yield check_range(rows[first : first + step], self.name, first)

    def share_read(self) -> None:
        """`shape` says more."""


def part_rows(most_rows: int, width: int) -> int:
    return max(1, min(most_rows, _PART_BYTES // (_WIDEST_ELEMENT_BYTES * max(1, width))))


def leading_shape(shape: tuple[int, ...], width: int) -> tuple[int, ...] | None:
    """The dimensions in front of a row: the last dimensions are flattened into one row when their product is its
    width. None when no such layout exists."""
    for first in reversed(range(len(shape))):
        if prod(shape[first:]) == width:
            return shape[:first]
    return None


def fits_float32(numbers: Sequence[float]) -> bool:
    """Whether all are finite, and stay finite as float32."""
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.array(numbers, np.float64).astype(np.float32)).all())
    except OverflowError:  # an integer beyond float64
        return False


def shorten(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def check_range(part: NDArray[Any], name: str, first_row: int) -> NDArray[Any]:
    """The part, whose first row has the index `first_row`. A finite number that float32 cannot hold is refused: the
    model would see an infinity."""
    if part.dtype.kind == "f" and part.dtype.itemsize > np.dtype(np.float32).itemsize:
        with np.errstate(over="ignore"):
            beyond = np.isinf(part.astype(np.float32)) & np.isfinite(part)
        if beyond.any():
            row, column = np.argwhere(beyond)[0]
            raise InputError(
                f"{name}, row {first_row + row + 1}, column {column + 1}: expected a number that fits float32, "
                f"got {part[row, column]:g}"
            )
    return part
