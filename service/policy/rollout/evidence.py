# SPDX-License-Identifier: Apache-2.0
"""Whether one arm answers worse than another, from the counters of both over the same time. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil, sqrt
from typing import NamedTuple

from fused_mlp.service import _engine
from fused_mlp.service.errors import CALLERS_OWN, Code
from fused_mlp.service.policy.canary_plan import CanaryPlan

# Two-sided 99.9 %: a canary is judged many times, and each verdict may be wrong.
Z = 3.29
# Latencies are compared at these quantiles, if there are enough requests to determine them.
QUANTILES = (0.5, 0.9, 0.99)
# Callers cancel as often at both arms, unless one keeps them waiting: without a deadline in the request, a caller that
# times out just cancels.
_NO_FAULT = CALLERS_OWN - {Code.CANCELLED}
# Promotion needs this quantile of both arms.
_JUDGED = 0.9


class Fault(NamedTuple):
    """`reason`: errors, latency, unavailable or requests."""

    reason: str
    text: str


@dataclass(frozen=True)
class Traffic:
    """The traffic of one arm. `latencies`: answered requests in the buckets of LATENCY_BOUNDS_NS."""

    requests: int = 0
    failed: int = 0
    latencies: tuple[int, ...] = ()

    @classmethod
    def of(cls, lane: _engine.Lane) -> Traffic:
        codes = lane.snapshot().requests.codes
        failed = sum(count for code, count in codes.items() if code not in _NO_FAULT)
        return cls(sum(codes.values()), failed, tuple(lane.latencies()))

    def since(self, before: Traffic) -> Traffic:
        return Traffic(
            self.requests - before.requests,
            self.failed - before.failed,
            tuple(now - then for now, then in zip(self.latencies, before.latencies, strict=True)),
        )

    @property
    def answered(self) -> int:
        return sum(self.latencies)


def _answers_needed(quantile: float) -> int:
    """With fewer answered requests the interval of the quantile has no upper end."""
    return ceil(round(Z**2 * quantile / (1 - quantile), 6))


LATENCY_REQUESTS = _answers_needed(_JUDGED)


def unjudged_latency(old: Traffic) -> str:
    """The quantile above those that the old arm's answers could determine; empty: all were judged."""
    for quantile in QUANTILES:
        if old.answered < (needed := _answers_needed(quantile)):
            return f"p{quantile * 100:g} was not judged: the old arm has answered {old.answered:,}, it needs {needed:,}"
    return ""


def find_fault(old: Traffic, new: Traffic, plan: CanaryPlan) -> Fault | None:
    """Why the new arm is worse than the plan allows, beyond chance; None: it is not, or there are too few requests."""
    if not old.requests or not new.requests:
        return None
    if text := _error_fault(old, new, plan.max_error_increase):
        return Fault("errors", text)
    for quantile in QUANTILES:
        if text := _latency_fault(old, new, quantile, plan.max_p99_ratio):
            return Fault("latency", text)
    return None


def _error_fault(old: Traffic, new: Traffic, allowed: float) -> str:
    low, _ = interval(new.failed, new.requests)
    _, high = interval(old.failed, old.requests)
    rates = new.failed / new.requests, old.failed / old.requests
    # Newcombe's interval of the difference of two shares.
    least = rates[0] - rates[1] - sqrt((rates[0] - low) ** 2 + (high - rates[1]) ** 2)
    if least <= allowed:
        return ""
    return (
        f"{new.failed:,} of {new.requests:,} requests failed or were cancelled, {rates[0]:.2%}, against {rates[1]:.2%} "
        f"of the old arm: at least {least:.2%} more, where {allowed:.2%} is allowed"
    )


def _latency_fault(old: Traffic, new: Traffic, quantile: float, allowed: float) -> str:
    """The limit comes from the upper end of the interval of the old arm's quantile. The new arm's quantile exceeds it
    if more requests than the quantile leaves exceed it, beyond chance."""
    if not old.answered or not new.answered:
        return ""
    share = quantile + Z * sqrt(quantile * (1 - quantile) / old.answered)
    measure_ns = _bound_above(old.latencies, share * old.answered)
    if measure_ns is None:
        return ""  # too few requests for this quantile, or above all bounds
    limit_ns = allowed * measure_ns
    slow = sum(new.latencies[bisect_left(_engine.LATENCY_BOUNDS_NS, limit_ns) + 1 :])
    low, _ = interval(slow, new.answered)
    if low <= 1 - quantile:
        return ""
    return (
        f"{slow / new.answered:.1%} of its requests took longer than {limit_ns / 1e6:.3g} ms: its p{quantile * 100:g} "
        f"is more than {allowed:g} times that of the old arm, which is at most {measure_ns / 1e6:.3g} ms"
    )


def _bound_above(counts: tuple[int, ...], rank: float) -> int | None:
    """The upper bound of the bucket that holds the request of that rank."""
    running = 0
    for count, bound in zip(counts, _engine.LATENCY_BOUNDS_NS, strict=False):
        running += count
        if running >= rank:
            return bound
    return None


def interval(count: int, total: int) -> tuple[float, float]:
    """The confidence interval of a share: Byar's approximation of the exact Poisson interval. It holds for small
    counts, where normal approximations are too narrow at this confidence, and is a little wide near a half."""
    if 2 * count > total:
        low, high = interval(total - count, total)
        return 1 - high, 1 - low
    low = 0.0 if count == 0 else count * max(0.0, 1 - 1 / (9 * count) - Z / (3 * sqrt(count))) ** 3
    high = (count + 1) * (1 - 1 / (9 * (count + 1)) + Z / (3 * sqrt(count + 1))) ** 3
    return low / total, min(1.0, high / total)
