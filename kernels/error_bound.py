# SPDX-License-Identifier: Apache-2.0
"""What float64 makes of rows, and how far from that a right kernel may be: a running forward error bound, one function
per kind of step. It holds for every input and every order of summation, so a result outside of it is wrong and not
unlucky. Where a right kernel may overflow, a divisor may be zero, or the input is not finite, the bound is infinite.
numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fused_mlp.kernels.bounded import (
    FLOAT32_LARGEST,
    FLOAT32_SMALLEST,
    PRECISIONS,
    UNIT,
    Bounded,
    Float64,
    Precision,
    store,
)
from fused_mlp.kernels.error_functions import FUNCTION_ROUNDINGS, bound_formula, combine
from fused_mlp.models import Mlp
from fused_mlp.models.activations import log_softmax
from fused_mlp.models.dtypes import Array, widen
from fused_mlp.models.quantization import SMALLEST_RANGE, Int8Matrix
from fused_mlp.models.spec import INPUT, Gated, Norm, Step

# Roundings to the kernel's dtype inside a sum of products: two factors, partial sums of a split sum, the bias.
_PRODUCT_ROUNDINGS = 4
# Inside a norm, or a scale and a shift: eager operators may store what is between two of them.
_STORED_ROUNDINGS = 4
_BLOCK = 1 << 20  # weights taken to float64 at a time: 8 MB, and as much again for their magnitudes


def forward_with_bound(mlp: Mlp, x: NDArray[np.float32], precision: Precision) -> Bounded:
    """x: (rows, in_features), as a caller sent them. `precision` of the kernel, which may differ from the model's.
    All outputs side by side, as kernels write them."""
    with np.errstate(all="ignore"):  # overflow makes the error infinite, and is looked for at each step
        given = x.astype(np.float64)
        error = np.where(np.isfinite(given).all(axis=1, keepdims=True), 0.0, np.inf)
        values = {INPUT: store(Bounded(given, np.broadcast_to(error, given.shape)), precision)}
        for step in mlp.spec.steps:
            values[step.name] = _step(mlp, step, [values[source] for source in step.sources], precision)
        return _concat([values[output.value] for output in mlp.spec.outputs])


def _step(mlp: Mlp, step: Step, sources: list[Bounded], precision: Precision) -> Bounded:  # noqa: PLR0911 - a table of steps
    x = sources[0]

    def tensor(name: str) -> Float64 | None:
        found = mlp.tensor(step, name)
        return None if found is None else widen(found).astype(np.float64)

    match step.op:
        case "linear":
            return _product(mlp, step, "", x, precision)
        case "gated":
            return _gated(mlp, step, x, precision)
        case "elementwise":
            return bound_formula(step.formula, x, precision)
        case "norm":
            normalized = _norm(x, step, precision)
            return _scale(normalized, tensor("weight"), tensor("bias"), precision)
        case "affine":
            return _scale(x, tensor("weight"), tensor("bias"), precision)
        case "softmax" | "log_softmax":
            return _softmax(x, precision, log=step.op == "log_softmax")
        case "concat":
            return _concat(sources)
        case "slice":
            columns = slice(step.start, step.stop)
            return Bounded(x.value[:, columns], x.error[:, columns], x.nonnegative)
    return store(combine(step.op, sources[0], sources[1]), precision)


def _concat(parts: list[Bounded]) -> Bounded:
    return Bounded(
        np.concatenate([part.value for part in parts], axis=1),
        np.concatenate([part.error for part in parts], axis=1),
        all(part.nonnegative for part in parts),
    )


def _gated(mlp: Mlp, step: Gated, x: Bounded, precision: Precision) -> Bounded:
    up, gate = (_product(mlp, step, half, x, precision) for half in ("", "gate_"))
    return store(combine("multiply", bound_formula(step.formula, gate, precision), up), precision)


def _product(mlp: Mlp, step: Step, half: str, x: Bounded, precision: Precision) -> Bounded:
    if isinstance(mlp.reduced.get(f"{step.prefix}.{half}weight"), Int8Matrix):
        step_size = precision.rows * x.size.max(axis=1, keepdims=True) + SMALLEST_RANGE
        x = Bounded(x.value, x.error + step_size)
    return _linear(x, mlp.tensor(step, f"{half}weight"), mlp.tensor(step, f"{half}bias"), precision)


def _linear(x: Bounded, weight: Array | None, bias: Array | None, precision: Precision) -> Bounded:
    """A sum of n products, in any order, has an error of at most n + 1 roundings of the sum of their magnitudes."""
    assert weight is not None
    columns = weight.shape[1]
    roundings = (columns + 2) * UNIT + _PRODUCT_ROUNDINGS * precision.product
    roundings /= 1 - min(roundings, 0.5)  # gamma_n: roundings of roundings
    value, size, carried = (np.empty((len(x.value), weight.shape[0])) for _ in range(3))
    flushed = np.empty_like(size)
    rows = max(1, _BLOCK // columns)
    for start in range(0, weight.shape[0], rows):
        block = slice(start, start + rows)
        w = widen(weight[block]).astype(np.float64)
        value[:, block] = x.value @ w.T
        np.abs(w, out=w)
        size[:, block] = x.size @ w.T
        carried[:, block] = x.error @ w.T
        flushed[:, block] = w.sum(axis=1) + columns
    if bias is not None:
        b = widen(bias).astype(np.float64)
        value += b
        size += np.abs(b)
    flushed += x.size.sum(axis=1, keepdims=True)
    error = carried + roundings * size + precision.smallest * flushed
    # Partial sums may overflow where the whole does not. Infinity times a zero weight is NaN: `size` is not below then.
    return store(Bounded(value, np.where(size < precision.largest, error, np.inf)), precision)


def _norm(x: Bounded, step: Norm, precision: Precision) -> Bounded:
    """centred / length, where length is a mean or a sum of squares. However its inputs are off, a length is off by at
    most the length of their errors (the triangle inequality), and eps keeps it from zero."""
    columns = x.value.shape[1]
    roundings = (columns + 8) * UNIT
    value, error = x.value, x.error
    if step.kind == "layer":
        value = value - value.mean(axis=1, keepdims=True)
        error = error + error.mean(axis=1, keepdims=True)
        error = error + roundings * x.size.mean(axis=1, keepdims=True) + 2 * UNIT * x.size
    count = 1 if step.kind == "l2" else columns

    def length_of(vector: Float64) -> Float64:
        result: Float64 = np.sqrt((vector * vector).sum(axis=1, keepdims=True) / count)
        return result

    length, off = length_of(value), length_of(error)
    most = length_of(np.abs(value) + error)
    floor = step.eps
    if step.kind != "l2":
        length, floor = np.sqrt(length * length + step.eps), np.sqrt(step.eps)
    else:
        length = np.maximum(length, step.eps)
    # The squares of numbers below the root of the smallest may be zero.
    off = off + roundings * (length + most) + np.sqrt(columns * FLOAT32_SMALLEST / count)
    least = np.maximum(length - off, floor * (1 - 8 * UNIT) if floor > 2 * FLOAT32_SMALLEST**0.5 else 0.0)
    result = value / length
    error = (error + np.abs(result) * off) / least
    error = error + (8 * UNIT + _STORED_ROUNDINGS * precision.stored) * (np.abs(result) + error)
    known = np.isfinite(x.error).all(axis=1, keepdims=True) & (least > 0)
    # A sum of squares may overflow, also of what is not centred yet.
    known &= np.maximum(most, length_of(x.size)) ** 2 * count < FLOAT32_LARGEST
    return store(Bounded(result, np.where(known, error, np.inf)), precision)


def _scale(x: Bounded, scale: Float64 | None, shift: Float64 | None, precision: Precision) -> Bounded:
    if scale is None and shift is None:
        return x
    value, error, size = x.value, x.error, x.size
    if scale is not None:
        value, error, size = value * scale, error * np.abs(scale), size * np.abs(scale)
    if shift is not None:
        value, size = value + shift, size + np.abs(shift)
    error = error + _STORED_ROUNDINGS * precision.stored * size + precision.smallest
    known = np.isfinite(x.error) & (size < precision.largest)
    return store(Bounded(value, np.where(known, error, np.inf)), precision)


def _softmax(x: Bounded, precision: Precision, *, log: bool) -> Bounded:
    """An output is largest where its own input is as high and all others are as low as they may be, and conversely."""
    below_top = x.value.max(axis=1, keepdims=True) - x.value
    # The subtraction of the largest, before the exponential.
    radius = x.error + 4 * UNIT * (below_top + 2 * x.error.max(axis=1, keepdims=True))
    low, high = x.value - radius, x.value + radius
    most = -np.logaddexp(0.0, _log_sum_of_others(low) - high)
    least = -np.logaddexp(0.0, _log_sum_of_others(high) - low)
    value = log_softmax(x.value)
    own = (FUNCTION_ROUNDINGS + x.value.shape[1]) * UNIT  # the sum of exponentials is a sum too
    if log:
        error = np.maximum(most - value, value - least)
        error += own * (1 + np.abs(value) + error)
        # The logarithm of the sum, which torch keeps in half precision where the model is.
        error += 2 * precision.stored * (np.log(x.value.shape[1]) + np.abs(value))
    else:
        value, most, least = np.exp(value), np.exp(most), np.exp(least)
        error = np.maximum(most - value, value - least)
        error += own * (value + error)
    known = np.isfinite(x.error).all(axis=1, keepdims=True)
    return store(Bounded(value, np.where(known, error, np.inf), not log), precision)


def _log_sum_of_others(x: Float64) -> Float64:
    """The logarithm of the sum of all other exponentials in the row; -inf for the only one. The largest is left out of
    its own sum, not subtracted from it: the rest may be too small to survive that."""
    top = x.argmax(axis=1)[:, None]
    highest = np.take_along_axis(x, top, 1)
    exponentials = np.exp(x - highest)
    others = exponentials.sum(axis=1, keepdims=True) - exponentials
    np.put_along_axis(exponentials, top, 0.0, 1)
    np.put_along_axis(others, top, exponentials.sum(axis=1, keepdims=True), 1)
    result: Float64 = highest + np.log(others)
    return result


__all__ = ["PRECISIONS", "Bounded", "Precision", "forward_with_bound"]
