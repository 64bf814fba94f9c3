# SPDX-License-Identifier: Apache-2.0
"""Weights in fewer bits: int8 with a scale per output, and bfloat16. Owns how a matrix is rounded, and what the product
of an int8 matrix and a row is, to the bit, as every kernel computes it. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.weights.dtypes import Array, empty_at_line, named_dtype, widen
from fused_mlp.models.weights.tables import is_table

Precision = Literal["float32", "bfloat16", "int8"]
Float32 = NDArray[np.float32]

LARGEST = 127  # of an int8 weight or input: symmetric, so that -128 is never used
SMALLEST_RANGE = 2.0**-100  # of a row or a column: numbers that are far below it count as zero
MAX_INPUTS = 131072  # of an int8 matrix: the sum of more products might not fit into int32
# Products of 127 * 127 at most of so many inputs add up to less than 2^24: exact in float32, in any order.
_EXACT_INPUTS = 1024
_TABLE_PART = 1 << 22  # numbers of a table that are quantized at once


@dataclass(frozen=True)
class Int8Matrix:
    """values: (out, in) int8, -127 to 127; scales: (out,) float32, positive. The weights are values * scales."""

    values: NDArray[np.int8]
    scales: Float32

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def widened(self) -> Float32:
        """As float32, C-contiguous."""
        return self.values * self.scales[:, None]


# How a matrix is kept: in int8, or as an array of bfloat16.
ReducedMatrix = Int8Matrix | Array


def to_int8(weight: Array) -> Int8Matrix:
    """weight: (out, in). An output whose weights are whole multiples of one number, up to 127 of it, as those of a
    quantised model are, keeps that number as its scale, and so its weights to the bit. The largest weight of the others
    becomes 127 or -127."""
    wide = widen(weight).astype(np.float64)
    largest = np.abs(wide).max(axis=1)
    scales = np.where(largest < SMALLEST_RANGE, 1.0, largest / LARGEST).astype(np.float32)
    _find_steps(wide, largest, scales)
    values = np.clip(np.rint(wide / scales[:, None]), -LARGEST, LARGEST).astype(np.int8)
    return Int8Matrix(values, scales)


_FEW_COLUMNS = 32


def _find_steps(wide: NDArray[np.float64], largest: NDArray[np.float64], scales: Float32) -> None:
    """Writes to `scales` the largest number of which all weights of an output are whole multiples, where there is one.
    float32 has rounded them: a multiple of 127 is off by as much as 127 * 2^-24."""
    left = np.flatnonzero(largest >= SMALLEST_RANGE)
    sample = np.ascontiguousarray(wide[:, :: -(-wide.shape[1] // _FEW_COLUMNS)])
    for count in range(1, LARGEST + 2):  # how many steps the largest weight has
        steps = largest[left] / count
        few = _are_whole(sample[left], steps)  # almost all are ruled out by a few weights
        found = left[few][_are_whole(wide[left[few]], steps[few])]
        if found.size:
            whole = np.rint(wide[found] / (largest[found] / count)[:, None])
            if count > LARGEST:
                # -128, which is not used here, becomes -127: where few weights are that large, it costs less than to
                # round all of them again.
                few = 12 * (np.abs(whole) > LARGEST).sum(axis=1) <= whole.shape[1]
                found, whole = found[few], whole[few]
            scales[found] = (wide[found] * whole).sum(axis=1) / (whole * whole).sum(axis=1)  # least squares
            left = np.setdiff1d(left, found)


def _are_whole(weights: NDArray[np.float64], steps: NDArray[np.float64]) -> NDArray[np.bool_]:
    multiples = weights / steps[:, None]
    whole = np.abs(multiples - np.rint(multiples)) < LARGEST * 2.0**-22
    return np.asarray(whole.all(axis=1))


def table_to_int8(table: Array) -> Int8Matrix:
    """table: (size, features), in parts: the whole is never widened."""
    values, scales = empty_at_line(table.shape, np.dtype(np.int8)), np.empty(len(table), np.float32)
    rows = max(1, _TABLE_PART // table.shape[1])
    for start in range(0, len(table), rows):
        part = slice(start, start + rows)
        wide = widen(table[part])
        largest = np.abs(wide).max(axis=1)
        scales[part] = np.where(largest < SMALLEST_RANGE, np.float32(1), largest / np.float32(LARGEST))
        values[part] = np.clip(np.rint(wide / scales[part, None]), -LARGEST, LARGEST)
    return Int8Matrix(values, scales)


def to_bfloat16(weight: Array) -> Array:
    with np.errstate(over="ignore"):  # check_reduced counts what is not finite
        made = empty_at_line(weight.shape, named_dtype("bfloat16"))
        made[...] = widen(weight)
        return made


def widened(matrix: ReducedMatrix) -> Float32:
    return matrix.widened() if isinstance(matrix, Int8Matrix) else widen(matrix)


def quantize_rows(x: Float32) -> tuple[Float32, Float32]:
    """x: (rows, in) -> whole numbers from -127 to 127 of the same shape, and scales (rows, 1). A row that is not finite
    has the scale NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        largest = np.abs(x).max(axis=1, keepdims=True)
        span = np.where(largest < np.float32(SMALLEST_RANGE), np.float32(SMALLEST_RANGE), largest)
        scales = span / np.float32(LARGEST) + (span - span)
        values = np.rint(x * (np.float32(LARGEST) / span))
    return np.where(np.isnan(scales), np.float32(0), values), scales


def int8_product(x: Float32, matrix: Int8Matrix) -> Float32:
    """x: (rows, in) -> (rows, out), before the bias: exact sums, then two roundings."""
    values, scales = quantize_rows(x)
    weights = matrix.values.astype(np.float32)
    sums = np.zeros((len(x), len(weights)))
    for start in range(0, x.shape[1], _EXACT_INPUTS):
        columns = slice(start, start + _EXACT_INPUTS)
        sums += values[:, columns] @ weights[:, columns].T
    return sums.astype(np.float32) * matrix.scales * scales


def check_reduced(matrix: ReducedMatrix, table: bool = False) -> str | None:  # noqa: PLR0911 - a list of faults
    """The fault of a reduced matrix, or None. `table`: its rows are looked up, and not multiplied; a mapped
    one is not read for this."""
    if table and is_table(matrix.values if isinstance(matrix, Int8Matrix) else matrix):
        return None
    if not isinstance(matrix, Int8Matrix):
        bad = matrix.size - int(np.count_nonzero(np.isfinite(widen(matrix))))
        return f"{bad} of {matrix.size} values are NaN or infinite" if bad else None
    out, columns = matrix.shape
    if matrix.scales.shape != (out,) or matrix.scales.dtype != np.float32:
        return f"expected {out} scales in float32, got {matrix.scales.shape} {matrix.scales.dtype}"
    most = np.finfo(np.float32).max / LARGEST  # so that the weights are finite too
    bad = out - int(np.count_nonzero((matrix.scales > 0) & (matrix.scales <= most)))
    if bad:
        return f"expected scales above zero, up to {most:.3g}, {bad} of {out} are not"
    if (matrix.values < -LARGEST).any():
        return f"expected values from -{LARGEST} to {LARGEST}, got -128"
    if columns > MAX_INPUTS and not table:
        return f"expected at most {MAX_INPUTS} inputs in int8, got {columns}"
    return None


Reduced = Mapping[str, ReducedMatrix]  # by the name of the matrix
