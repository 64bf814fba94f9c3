# SPDX-License-Identifier: Apache-2.0
"""Values and how far a right kernel may be from them, and how kernels round: what the error bounds are made of.
numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

UNIT = 2.0**-24  # unit roundoff of float32, in which every kernel adds up products and computes functions


@dataclass(frozen=True)
class Precision:
    """How a kernel rounds. `product`: unit roundoff of factors; `stored`: of what it writes to memory between steps;
    `smallest`: below it numbers may become zero; `largest`: above it they may become infinite."""

    product: float
    stored: float
    smallest: float
    largest: float
    rows: float = (
        0.0  # what quantizing the rows of an int8 product changes, in units of a row's largest value
    )


FLOAT32_SMALLEST, FLOAT32_LARGEST = (
    2.0**-126,
    2.0**124,
)  # 1/16 of the largest: hardswish computes 6 x on its way
# By the dtype of `Kernel.describe()`.
PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "float32": Precision(UNIT, UNIT, FLOAT32_SMALLEST, FLOAT32_LARGEST),
        "tf32": Precision(2.0**-11, UNIT, FLOAT32_SMALLEST, FLOAT32_LARGEST),
        "bfloat16": Precision(2.0**-8, 2.0**-8, FLOAT32_SMALLEST, FLOAT32_LARGEST),
        "float16": Precision(2.0**-11, 2.0**-11, 2.0**-24, 2.0**15),
        "int8": Precision(UNIT, UNIT, FLOAT32_SMALLEST, FLOAT32_LARGEST, rows=(0.5 + 2.0**-15) / 127),
    }
)


@dataclass(frozen=True)
class Bounded:
    """value: (rows, width), what float64 computes; error: of the same shape, the largest of a right kernel.
    `nonnegative`: no right kernel has a negative number there, however large its error is."""

    value: Float64
    error: Float64
    nonnegative: bool = False

    @property
    def size(self) -> Float64:
        """The largest magnitude that a right kernel may have there."""
        result: Float64 = np.abs(self.value) + self.error
        return result

    @property
    def low(self) -> Float64:
        result: Float64 = self.value - self.error
        return np.maximum(result, 0.0) if self.nonnegative else result

    @property
    def high(self) -> Float64:
        result: Float64 = self.value + self.error
        return result

    def admits(self, y: NDArray[Any]) -> NDArray[np.bool_]:
        """y: (rows, width), what a kernel computed. Whether each may be the result of a right one."""
        with np.errstate(invalid="ignore"):
            return np.isinf(self.error) | (np.abs(y - self.value) <= self.error)


def store(result: Bounded, precision: Precision) -> Bounded:
    """The rounding of a step's result to the dtype in which it is kept. What may overflow, or is no number (whose size
    is not below anything), gets an infinite error."""
    size = result.size
    error = result.error + precision.stored * size + precision.smallest
    known = size < precision.largest
    return Bounded(result.value, np.where(known, error, np.inf), result.nonnegative)
