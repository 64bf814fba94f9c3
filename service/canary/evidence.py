# SPDX-License-Identifier: Apache-2.0
"""Whether an arm answers worse than another, from the counters of both since some moment. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from fused_mlp.service import _engine
from fused_mlp.service.errors import CALLERS_OWN
from fused_mlp.service.settings.canary import CanaryPlan

# Two-sided 99.9 %: a canary is looked at many times, and each look may be wrong.
Z = 3.29
TAIL = 0.01  # p99


class Fault(NamedTuple):
    """`reason`: errors, latency or unavailable."""

    reason: str
    text: str


@dataclass(frozen=True)
class Traffic:
    """Of one arm: how many requests, how many failed, and how many took how long (by DURATION_BOUNDS)."""

    requests: int = 0
    failed: int = 0
    buckets: tuple[int, ...] = ()

    @classmethod
    def of(cls, lane: _engine.Lane) -> Traffic:
        seen = lane.snapshot().requests
        failed = sum(count for code, count in seen.codes.items() if code not in CALLERS_OWN)
        return cls(sum(seen.codes.values()), failed, tuple(seen.duration.buckets))

    def since(self, before: Traffic) -> Traffic:
        return Traffic(
            self.requests - before.requests,
            self.failed - before.failed,
            tuple(now - then for now, then in zip(self.buckets, before.buckets, strict=True)),
        )


def find_fault(old: Traffic, new: Traffic, plan: CanaryPlan) -> Fault | None:
    """Why the new arm is worse than the plan allows, beyond chance; None: it is not, as far as can be told."""
    if not old.requests or not new.requests:
        return None
    if text := _error_fault(old, new, plan.max_error_increase):
        return Fault("errors", text)
    if text := _tail_fault(old, new, plan.max_p99_ratio):
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
        f"{new.failed:,} of {new.requests:,} requests failed, {rates[0]:.2%}, against {rates[1]:.2%} of the old arm: "
        f"at least {least:.2%} more, where {allowed:.2%} is allowed"
    )


def _tail_fault(old: Traffic, new: Traffic, allowed: float) -> str:
    """The new arm's p99 is over a limit when more than a hundredth of its requests are, beyond chance. The limit comes
    from the upper end of the interval of the old arm's p99, at the bound of a bucket above it."""
    answered = sum(old.buckets)
    if not answered or not sum(new.buckets):
        return ""
    share = 1 - TAIL + Z * sqrt(TAIL * (1 - TAIL) / answered)
    p99_s = _bound_above(old.buckets, share * answered)
    if p99_s is None:
        return ""  # not known well enough (below about 1,070 requests), or above all bounds
    limit_ns = allowed * p99_s * 1e9
    bounds = [i for i, bound in enumerate(_engine.DURATION_BOUNDS_NS) if bound >= limit_ns]
    if not bounds:
        return ""
    slow = sum(new.buckets[bounds[0] + 1 :])
    low, _ = interval(slow, sum(new.buckets))
    if low <= TAIL:
        return ""
    bound_s = _engine.DURATION_BOUNDS_NS[bounds[0]] / 1e9
    return (
        f"{slow / sum(new.buckets):.1%} of its requests took longer than {bound_s * 1e3:.3g} ms: its p99 is more than "
        f"{allowed:g} times that of the old arm, which is at most {p99_s * 1e3:.3g} ms"
    )


def _bound_above(buckets: tuple[int, ...], rank: float) -> float | None:
    """The bound, in seconds, of the bucket in which the request of that rank is."""
    running = 0
    for count, bound in zip(buckets, _engine.DURATION_BOUNDS_NS, strict=False):
        running += count
        if running >= rank:
            return bound / 1e9
    return None


def interval(count: int, total: int) -> tuple[float, float]:
    """Of a share. Byar's approximation of the exact Poisson interval: right for small counts too, where those that lean
    on the normal distribution are too narrow at this confidence; a little wide for shares near a half."""
    if 2 * count > total:
        low, high = interval(total - count, total)
        return 1 - high, 1 - low
    low = 0.0 if count == 0 else count * max(0.0, 1 - 1 / (9 * count) - Z / (3 * sqrt(count))) ** 3
    high = (count + 1) * (1 - 1 / (9 * (count + 1)) + Z / (3 * sqrt(count + 1))) ** 3
    return low / total, min(1.0, high / total)
