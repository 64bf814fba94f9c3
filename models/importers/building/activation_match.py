# SPDX-License-Identifier: Apache-2.0
"""Which activation of the spec an unknown elementwise function is, told by its values. Exporters spell the
same function in many ways (gelu alone has a dozen); its values are what they agree on."""

from __future__ import annotations

import math

import numpy as np

from fused_mlp.models.program import formula
from fused_mlp.models.program.activations import Floats

# Where to evaluate the function: densely where activations bend, then far out, where a clipped one shows its
# limits. float64, (n,). The last points are those of the largest size.
_FAR = np.array([50.0, 80.0, 300.0, 3e3, 3e4, 3e6, 3e10, 3e20, 3e30])
POINTS = np.concatenate([np.linspace(-12, 12, 2401), _FAR, -_FAR])
# gelu and gelu_tanh, the closest pair, are 5e-4 apart; constants written as float32 move values by 1e-7.
TOLERANCE = 1e-5
# Functions that have a name, besides those with parameters.
_NAMED = (
    "x", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "elu", "softplus", "hardswish", "relu6", "mish",
    "selu", "hardsigmoid", "softsign", "quick_gelu", "abs", "square", "relu(x) * relu(x)",
)  # fmt: skip
# Beyond this a spelling such as log(1 + exp(x)) overflows in float32, where the spec's function does not.
_OVERFLOW = 80.0


def match_formula(values: Floats, tolerance: float = TOLERANCE) -> formula.Node | None:
    """The function with these values at POINTS, as a formula: an activation, or one of the other functions that have a
    name. None if there is none."""
    if values.shape != POINTS.shape:
        return None
    low, high, left = values[-1], values[-1 - len(_FAR)], _tidy(-_value_at(-1.0, values))
    candidates = [*_NAMED, f"leaky_relu(x, {left!r})"] if math.isfinite(left) else [*_NAMED]
    # Functions with parameters, read from the values far out: a value that is the point itself is no limit.
    if math.isfinite(low) and math.isfinite(high):
        if high == POINTS.max() and low != POINTS.min():
            candidates.append(f"maximum(x, {_tidy(low)!r})")
        elif low == POINTS.min() and high != POINTS.max():
            candidates.append(f"minimum(x, {_tidy(high)!r})")
        elif low < high:
            candidates.append(f"clip(x, {_tidy(low)!r}, {_tidy(high)!r})")
    if math.isfinite(low) and low not in (0, POINTS.min()):
        candidates.append(f"elu(x, {_tidy(-low)!r})")
    for text in candidates:
        found = formula.parse(text)
        if _close(values, found(POINTS), tolerance):
            return found.root
    return None


def _value_at(point: float, values: Floats) -> float:
    return float(values[int(np.abs(POINTS - point).argmin())])


def _close(values: Floats, expected: Floats, tolerance: float) -> bool:
    """A NaN fails, unless it is an overflow far out."""
    excused = ~np.isfinite(values) & (np.abs(POINTS) >= _OVERFLOW)
    with np.errstate(invalid="ignore"):
        error = np.abs(values - expected) / np.maximum(np.abs(expected), 1.0)
    return bool((excused | (error <= tolerance)).all())


def _tidy(value: float) -> float:
    """The number that was meant, where there is no doubt about it: 0.01 for the float32 0.009999999776, and 0.1 for
    0.1 with an error of the last bits. 1 / 3 stays as exact as it is."""
    value = float(value)
    for short in (float(f"{value:.6g}"), float(str(np.float32(value)))):
        if abs(short - value) <= 1e-9 * abs(value) or (
            float(np.float32(value)) == value == float(np.float32(short))
        ):
            return short
    return value
