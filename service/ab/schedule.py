"""When each request of a run is due, before the run begins: short slices that alternate between the variants, and
in both slices of a pair the same arrivals, so that the two see the same load within a second of each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fused_mlp.service.ab.blocks import Array
from fused_mlp.service.client.prediction import Variant

LONGEST_SLICE_S = 1.0
SHORTEST_SLICE_S = 0.1
PAIRS = 30  # or more: the interval is made of pairs


@dataclass(frozen=True)
class Slice:
    """`due`: seconds from the start of the slice, ascending, one for each request."""

    pair: int
    variant: Variant
    due: Array


def slice_seconds(duration_s: float) -> float:
    return min(LONGEST_SLICE_S, max(SHORTEST_SLICE_S, duration_s / (2 * PAIRS)))


def plan(duration_s: float, rate: float) -> Iterator[Slice]:
    """Arrivals as live traffic has them: independent of each other and of the answers. It is a Poisson process but
    for the count, which is the same in every slice."""
    length = slice_seconds(duration_s)
    rng = np.random.default_rng(1)
    for pair in range(round(duration_s / (2 * length))):
        # Which comes first changes from pair to pair: what favours the second slice favours both alike.
        order: tuple[Variant, Variant] = ("fused", "unfused") if pair % 2 == 0 else ("unfused", "fused")
        due = np.sort(rng.uniform(0, length, max(1, round(rate * length))))
        yield from (Slice(pair, variant, due) for variant in order)
