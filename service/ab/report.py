# SPDX-License-Identifier: Apache-2.0
"""The result of a comparison, live or recorded: figures of both arms, ratios with their intervals, and a verdict in
one sentence. Knows no terminal and no HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from fused_mlp.service.ab.bootstrap import CONFIDENCE, Blocks, Ratio, ratios

Unit = Literal["s", "req/s"]
Arms = tuple[str, str]  # such as 2/fused and 3/fused; ratios are of the second to the first
VARIANT_ARMS: Arms = ("fused", "unfused")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
# Points of the plotted distribution: even steps, and closer together in the tail.
PLOTTED_SHARES = tuple(float(s) for s in (*np.linspace(0.005, 0.985, 99), *np.linspace(0.9875, 0.999, 12)))


@dataclass(frozen=True)
class Row:
    """One line of the table; None where a value is not known."""

    name: str
    unit: Unit
    first: float | None
    second: float | None
    ratio: Ratio | None = None


@dataclass(frozen=True)
class Difference:
    """Largest difference of both arms' outputs on the same rows; relative to the row's largest output. Between versions
    also how the differences of rows are distributed, and how many rows have another largest output."""

    absolute: float
    relative: float | None
    rows: int
    quantiles: Mapping[str, float] | None = None  # p50, p90, p99 of the rows' relative differences
    top1_changed: int | None = None


@dataclass(frozen=True)
class Report:
    title: str  # the compared arms and the environment
    facts: dict[str, str]  # how it was measured
    rows: tuple[Row, ...]
    difference: Difference | None
    problems: tuple[str, ...]  # each makes the figures invalid
    notes: tuple[str, ...]  # each limits what the figures mean
    distribution: dict[str, list[tuple[float, float]]]  # by arm: (seconds, share of requests not above)
    timeline: dict[str, list[tuple[float, float]]]  # (seconds since the start, median in seconds)
    arms: Arms = VARIANT_ARMS

    @property
    def valid(self) -> bool:
        return not self.problems

    @property
    def verdict(self) -> str:
        if self.problems:
            return not_valid(self.problems)
        by_name = {row.name: row.ratio for row in self.rows}
        median, tail = by_name.get("latency p50"), by_name.get("latency p99")
        if median is None:
            return "No verdict: at least one of the arms answered too little to compare."
        return f"{_median_in_words(median, self.arms)}{_tail_in_words(tail)}."

    def as_json(self) -> dict[str, Any]:
        known = asdict(self) | {"valid": self.valid, "verdict": self.verdict, "confidence": CONFIDENCE}
        for row in known["rows"]:
            row |= {arm: row.pop(side) for arm, side in zip(self.arms, ("first", "second"), strict=True)}
        return {key: _finite(value) for key, value in known.items()}


def latency_rows(name: str, first: Blocks, second: Blocks) -> list[Row]:
    """p50, p90 and p99 of both arms, with ratios. Block i of both is the same time."""
    shares = list(QUANTILES.values())
    found = ratios(
        lambda weights: first.quantiles(shares, weights),
        lambda weights: second.quantiles(shares, weights),
        first.size,
    )
    values = zip(QUANTILES, first.quantiles(shares), second.quantiles(shares), found, strict=True)
    return [Row(f"{name} {label}", "s", known(f), known(u), ratio) for label, f, u, ratio in values]


def distribution(blocks: Blocks) -> list[tuple[float, float]]:
    found = blocks.quantiles(PLOTTED_SHARES)
    return [(float(v), s) for v, s in zip(found, PLOTTED_SHARES, strict=True) if np.isfinite(v)]


def known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def not_valid(problems: Sequence[str]) -> str:
    return f"Not valid: {'; '.join(problems)}."


def say_ratio(value: float) -> str:
    """1.234 -> '1.23x'; 12.34 -> '12.3x'."""
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def say_interval(ratio: Ratio) -> str:
    return f"{say_ratio(ratio.low)} to {say_ratio(ratio.high)}"


def _median_in_words(ratio: Ratio, arms: Arms) -> str:
    interval = f"95 % interval of the ratio {say_interval(ratio)}"
    if ratio.is_noise:
        return f"No difference beyond noise at the median ({interval})"
    faster, slower = arms if ratio.value > 1 else arms[::-1]
    faster = faster[0].upper() + faster[1:]
    factor = max(ratio.value, 1 / ratio.value)
    how_much = (
        f"{say_ratio(factor)} as fast as" if factor >= 1.1 else f"{100 * (factor - 1):.1f} % faster than"
    )
    return f"{faster} is {how_much} {slower} at the median ({interval})"


def _tail_in_words(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    if ratio.is_noise:
        return "; at p99 the difference is within noise"
    return f"; at p99 the ratio is {say_ratio(ratio.value)} ({say_interval(ratio)})"


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
