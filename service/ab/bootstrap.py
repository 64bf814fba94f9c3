# SPDX-License-Identifier: Apache-2.0
"""Ratios of two arms with confidence intervals from a block bootstrap: blocks of time are resampled with replacement,
for both arms together, so that a resample keeps the drift and the bursts of the machine. A block is a slice of a live
run, with every single latency, or a time step of a recorded histogram."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Blocks(Protocol):
    """`weights`: how often each block counts."""

    @property
    def size(self) -> int: ...

    def quantiles(self, shares: Sequence[float], weights: Array | None = None) -> Array: ...


class Samples:
    """Every single value of every block."""

    def __init__(self, blocks: Sequence[NDArray[Any]]) -> None:
        values = np.concatenate([np.asarray(block, np.float64) for block in blocks])
        owner = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
        order = np.argsort(values, kind="stable")
        self._values, self._owner = values[order], owner[order]
        self.size = len(blocks)

    def quantiles(self, shares: Sequence[float], weights: Array | None = None) -> Array:
        """The smallest value with at least this share of all values at or below it. Values are sorted once, so that a
        resample costs one cumulative sum."""
        counts = np.ones(self.size) if weights is None else weights
        running = np.cumsum(counts[self._owner])
        if not running.size or running[-1] == 0:
            return np.full(len(shares), np.nan)
        found = np.searchsorted(running, np.asarray(shares) * running[-1], side="left")
        result: Array = self._values[np.minimum(found, len(running) - 1)]
        return result


class Buckets:
    """counts: (blocks, buckets), not cumulative; the last bucket has no upper bound."""

    def __init__(self, bounds: Sequence[float], counts: NDArray[Any]) -> None:
        self._upper = np.asarray(bounds, np.float64)
        self._lower = np.concatenate(([0.0], self._upper))
        self._counts = np.asarray(counts, np.float64)
        self.size = len(self._counts)

    @property
    def total(self) -> float:
        return float(self._counts.sum())

    def quantiles(self, shares: Sequence[float], weights: Array | None = None) -> Array:
        """Like Prometheus' histogram_quantile: linear inside a bucket; the last finite bound for values above it."""
        counts = self._counts.sum(0) if weights is None else weights @ self._counts
        running = np.cumsum(counts)
        if not running.size or running[-1] <= 0:
            return np.full(len(shares), np.nan)
        return np.array([self._one(share * running[-1], counts, running) for share in shares])

    def _one(self, rank: float, counts: Array, running: Array) -> float:
        bucket = int(np.searchsorted(running, rank, side="left"))
        if bucket >= len(self._upper):
            return float(self._upper[-1])
        before = running[bucket] - counts[bucket]
        inside = (rank - before) / counts[bucket] if counts[bucket] else 0.0
        return float(self._lower[bucket] + (self._upper[bucket] - self._lower[bucket]) * inside)


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
