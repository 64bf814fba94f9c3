# SPDX-License-Identifier: Apache-2.0
"""The functions of formulas, and the two softmaxes, in numpy: what each of them computes, in the dtype of its input
(float32 or float64). For checks and for recognising a function by its values; kernels have their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]

_SOFTPLUS_LINEAR = 20.0  # above it softplus(x) is x, as in PyTorch
# erf is a Taylor series around the nearest of these points. At most half a step away, 5 terms are exact to the last
# bits of float64. Beyond the last point erf is 1.
_ERF_STEPS_PER_UNIT = 512
_ERF_LAST = 6.0
_ERF_TERMS = 5


def erf(x: Floats) -> Floats:
    """Absolute error below 3e-16; computed in float64, returned in the dtype of x."""
    values = np.asarray(x, np.float64)
    size = np.fmin(np.abs(values), _ERF_LAST)
    nearest = np.rint(size * _ERF_STEPS_PER_UNIT)
    offset = size - nearest / _ERF_STEPS_PER_UNIT
    index = nearest.astype(np.intp)
    *lower, highest = _erf_series()
    result = highest[index]
    for coefficients in reversed(lower):
        result *= offset
        result += coefficients[index]
    result = np.where(np.isnan(values), values, np.copysign(result, values))
    return result.astype(x.dtype, copy=False)


@cache
def _erf_series() -> list[NDArray[np.float64]]:
    """[power][point]: the Taylor coefficients of erf at each point. Its derivatives are 2/sqrt(pi) exp(-c^2) times
    Hermite polynomials (H0 = 1, H1 = 2c, H(n+1) = 2c Hn - 2n H(n-1)) with alternating signs."""
    points = np.arange(int(_ERF_LAST * _ERF_STEPS_PER_UNIT) + 1) / _ERF_STEPS_PER_UNIT
    bell = 2 / math.sqrt(math.pi) * np.exp(-points * points)
    series = [np.array([math.erf(point) for point in points])]
    before, hermite = np.zeros_like(points), np.ones_like(points)
    for power in range(1, _ERF_TERMS):
        series.append((-1) ** (power - 1) * bell * hermite / math.factorial(power))
        before, hermite = hermite, 2 * points * hermite - 2 * (power - 1) * before
    return series


def _gelu(x: Floats) -> Floats:
    result: Floats = 0.5 * x * (1 + erf(x * math.sqrt(0.5)))
    return result


def _gelu_tanh(x: Floats) -> Floats:
    result: Floats = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return result


def _sigmoid(x: Floats) -> Floats:
    result: Floats = 1 / (1 + np.exp(-x))
    return result


def _softplus(x: Floats, beta: Any = 1.0, threshold: Any = _SOFTPLUS_LINEAR) -> Floats:
    scaled = x * beta
    return np.where(scaled > threshold, x, np.log1p(np.exp(np.minimum(scaled, threshold))) / beta)


def softmax(x: Floats) -> Floats:
    grown = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Floats = grown / grown.sum(axis=-1, keepdims=True)
    return result


def log_softmax(x: Floats) -> Floats:
    shifted = x - x.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _sign(x: Floats) -> Floats:
    """0 for NaN, as in PyTorch."""
    return np.asarray(np.greater(x, 0), x.dtype) - np.less(x, 0)


def _elu(x: Floats, alpha: Any = 1.0) -> Floats:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


# Each function of a formula, in the dtype of its values: (values, parameters ...) -> values.
PRIMITIVES: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x, slope: np.where(x > 0, x, x * slope),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "elu": _elu,
    "softplus": _softplus,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "clip": np.clip,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "erf": erf,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sign": _sign,
}
