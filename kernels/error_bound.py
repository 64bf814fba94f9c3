"""What float64 makes of rows, and how far from that a right kernel may be: a running forward error bound, one function
per kind of step. It holds for every input and every order of summation, so a result outside of it is wrong and not
unlucky. Where a right kernel may overflow, or the input is not finite, the bound is infinite. numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models import Mlp
from fused_mlp.models.chain import activate
from fused_mlp.models.dtypes import Array, widen
from fused_mlp.models.spec import OutputActivation

Float64 = NDArray[np.float64]

UNIT = 2.0**-24  # unit roundoff of float32, in which every kernel adds up products and computes activations
# A kernel's own activation: at most this many roundings, of its result and of its input up to _BENT, beyond which every
# activation is zero, one or linear. Near zero 1 + erf(x) and the like cancel, hence the input.
_ACTIVATION_ROUNDINGS = 16
_BENT = 8.0
# Roundings to the kernel's dtype inside a sum of products: two factors, partial sums of a split sum, the bias.
_PRODUCT_ROUNDINGS = 4
_EXACT: frozenset[OutputActivation] = frozenset({"identity", "relu", "relu6"})
# Where an activation that falls and then rises is lowest; the others only rise.
_LOWEST_AT: Mapping[OutputActivation, float] = MappingProxyType(
    {
        "gelu": -0.7517915,
        "gelu_tanh": -0.7524614,
        "silu": -1.2784645,
        "hardswish": -1.5,
        "mish": -1.1924448,
    }
)
_BLOCK = 1 << 20  # weights taken to float64 at a time: 8 MB, and as much again for their magnitudes


@dataclass(frozen=True)
class Precision:
    """How a kernel rounds. `product`: unit roundoff of factors; `stored`: of what it writes to memory between steps;
    `smallest`: below it numbers may become zero; `largest`: above it they may become infinite."""

    product: float
    stored: float
    smallest: float
    largest: float


_FLOAT32_RANGE = (2.0**-126, 2.0**124)  # 1/16 of the largest: hardswish computes 6 x on its way
# By the dtype of `Kernel.describe()`.
PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "float32": Precision(UNIT, UNIT, *_FLOAT32_RANGE),
        "tf32": Precision(2.0**-11, UNIT, *_FLOAT32_RANGE),
        "bfloat16": Precision(2.0**-8, 2.0**-8, *_FLOAT32_RANGE),
        "float16": Precision(2.0**-11, 2.0**-11, 2.0**-24, 2.0**15),
    }
)


@dataclass(frozen=True)
class Bounded:
    """value: (rows, width), what float64 computes; error: of the same shape, the largest of a right kernel."""

    value: Float64
    error: Float64

    @property
    def size(self) -> Float64:
        """The largest magnitude that a right kernel may have there."""
        result: Float64 = np.abs(self.value) + self.error
        return result

    def admits(self, y: NDArray[Any]) -> NDArray[np.bool_]:
        """y: (rows, width), what a kernel computed. Whether each may be the result of a right one."""
        with np.errstate(invalid="ignore"):
            return np.isinf(self.error) | (np.abs(y - self.value) <= self.error)


def forward_with_bound(mlp: Mlp, x: NDArray[np.float32], precision: Precision) -> Bounded:
    """x: (rows, in_features), as a caller sent them. `precision` of the kernel, which may differ from the model's."""
    with np.errstate(all="ignore"):  # overflow makes the error infinite, and is looked for at each step
        given = x.astype(np.float64)
        error = np.where(np.isfinite(given).all(axis=1, keepdims=True), 0.0, np.inf)
        values = _store(Bounded(given, np.broadcast_to(error, given.shape)), precision)
        for layer, weights in zip(mlp.spec.layers, mlp.layers, strict=True):
            up = _linear(values, weights.weight, weights.bias, precision)
            if weights.gate_weight is None:
                values = _activate(up, layer.activation, layer.negative_slope, precision)
            else:
                gate = _linear(values, weights.gate_weight, weights.gate_bias, precision)
                gate = _activate(gate, layer.activation, layer.negative_slope, precision)
                values = _multiply(gate, up, precision)
        last, slope = mlp.spec.output_activation, mlp.spec.output_negative_slope
        if last in ("softmax", "log_softmax"):
            return _softmax(values, precision, log=last == "log_softmax")
        return _activate(values, last, slope, precision)


def _store(result: Bounded, precision: Precision) -> Bounded:
    """The rounding of a step's result to the dtype in which it is kept."""
    size = result.size
    error = result.error + precision.stored * size + precision.smallest
    return Bounded(result.value, np.where(size < precision.largest, error, np.inf))


def _linear(x: Bounded, weight: Array, bias: Array | None, precision: Precision) -> Bounded:
    """A sum of n products, in any order, has an error of at most n + 1 roundings of the sum of their magnitudes."""
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
    return _store(Bounded(value, np.where(size < precision.largest, error, np.inf)), precision)


def _activate(x: Bounded, name: OutputActivation, slope: float, precision: Precision) -> Bounded:
    """From the lowest and the highest value over the interval that x may be in."""
    if name == "identity":
        return x
    value = activate(name, x.value, slope)
    low, high = x.value - x.error, x.value + x.error
    lowest_at = 0.0 if name == "leaky_relu" and slope < 0 else _LOWEST_AT.get(name, -np.inf)
    at_low, at_high = activate(name, low, slope), activate(name, high, slope)
    bottom = at_low if lowest_at == -np.inf else activate(name, np.clip(lowest_at, low, high), slope)
    error = np.maximum(np.maximum(at_low, at_high) - value, value - bottom)
    if name not in _EXACT:
        error += _ACTIVATION_ROUNDINGS * UNIT * (np.abs(value) + error + np.minimum(x.size, _BENT))
    return _store(Bounded(value, np.where(np.isfinite(x.error), error, np.inf)), precision)


def _multiply(a: Bounded, b: Bounded, precision: Precision) -> Bounded:
    error = np.abs(a.value) * b.error + a.error * b.size
    known = np.isfinite(a.error) & np.isfinite(b.error)
    return _store(Bounded(a.value * b.value, np.where(known, error, np.inf)), precision)


def _softmax(x: Bounded, precision: Precision, *, log: bool) -> Bounded:
    """An output is largest where its own input is as high and all others are as low as they may be, and conversely."""
    below_top = x.value.max(axis=1, keepdims=True) - x.value
    # The subtraction of the largest, before the exponential.
    radius = x.error + 4 * UNIT * (below_top + 2 * x.error.max(axis=1, keepdims=True))
    low, high = x.value - radius, x.value + radius
    most = -np.logaddexp(0.0, _log_sum_of_others(low) - high)
    least = -np.logaddexp(0.0, _log_sum_of_others(high) - low)
    value = activate("log_softmax", x.value)
    own = (_ACTIVATION_ROUNDINGS + x.value.shape[1]) * UNIT  # the sum of exponentials is a sum too
    if log:
        error = np.maximum(most - value, value - least)
        error += own * (1 + np.abs(value) + error)
    else:
        value, most, least = np.exp(value), np.exp(most), np.exp(least)
        error = np.maximum(most - value, value - least)
        error += own * (value + error)
    known = np.isfinite(x.error).all(axis=1, keepdims=True)
    return _store(Bounded(value, np.where(known, error, np.inf)), precision)


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
