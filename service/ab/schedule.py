# SPDX-License-Identifier: Apache-2.0
"""The due time of each request, planned before the run: short slices that alternate between the arms. Both slices
of a pair have the same arrivals, so that both arms get the same load within seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fused_mlp.service.ab.blocks import Array

LONGEST_SLICE_S = 1.0
SHORTEST_SLICE_S = 0.1
PAIRS = 30  # at least, for a usable bootstrap interval


@dataclass(frozen=True)
class Slice:
    """`due`: one time per request, in seconds from the start of the slice, ascending."""

    pair: int
    side: int  # which of the two arms
    due: Array


def slice_seconds(duration_s: float) -> float:
    return min(LONGEST_SLICE_S, max(SHORTEST_SLICE_S, duration_s / (2 * PAIRS)))


def plan(duration_s: float, rate: float) -> Iterator[Slice]:
    """Random arrivals, independent of each other and of the answers: a Poisson process with a fixed count per slice."""
    length = slice_seconds(duration_s)
    rng = np.random.default_rng(1)
    for pair in range(round(duration_s / (2 * length))):
        # The order alternates, so that an advantage of the second slice goes to both arms alike.
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        due = np.sort(rng.uniform(0, length, max(1, round(rate * length))))
        yield from (Slice(pair, side, due) for side in order)
