# SPDX-License-Identifier: Apache-2.0
"""The second arm / the first with a confidence interval from a block bootstrap: blocks of time are resampled with
replacement, for both arms together, so that a resample keeps the drift and the bursts of the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fused_mlp.service.ab.blocks import Array

RESAMPLES = 1000
CONFIDENCE = 0.95
Measure = Callable[[Array], Array]  # from the weights of the blocks to one or more numbers


@dataclass(frozen=True)
class Ratio:
    """Above 1: the first arm needs less. `low` and `high` contain the true ratio in 95 of 100 runs."""

    value: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        return self.low <= 1 <= self.high


def ratios(first: Measure, second: Measure, blocks: int) -> list[Ratio | None]:
    """One ratio for each number that the measures return; None where it cannot be formed."""
    once = np.ones(blocks)
    measured = _divide(second(once), first(once))
    rng = np.random.default_rng(0)  # the same data gives the same interval
    drawn = np.array(
        [
            _divide(second(weights), first(weights))
            for weights in rng.multinomial(blocks, np.full(blocks, 1 / blocks), RESAMPLES).astype(np.float64)
        ]
    )
    found: list[Ratio | None] = []
    for value, column in zip(measured, drawn.T, strict=True):
        drawn_well = column[np.isfinite(column) & (column > 0)]
        # No interval if many resamples have no valid ratio.
        if not (np.isfinite(value) and value > 0) or len(drawn_well) < 0.9 * RESAMPLES:
            found.append(None)
            continue
        low, high = np.quantile(drawn_well, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        found.append(Ratio(float(value), float(min(low, value)), float(max(high, value))))
    return found


def per(amounts: Array, counts: Array) -> Measure:
    """The amount per count; both are given by block."""
    return lambda weights: _divide(np.array([weights @ amounts]), np.array([weights @ counts]))


def _divide(over: Array, under: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(over, np.float64) / np.asarray(under, np.float64)
