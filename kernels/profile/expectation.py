# SPDX-License-Identifier: Apache-2.0
"""Expected counts of a forward pass (--expect), compared with those found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fused_mlp.kernels.profile.results import PROFILED, Point, ProfileError

_COUNTED = {
    "ops": lambda point: point.counts.dispatched,
    "bookkeeping": lambda point: point.counts.bookkeeping,
    "launches": lambda point: point.counts.launched,
}
_USAGE = (
    "expected NAME=NUMBER pairs by commas, of ops, bookkeeping and launches, such as ops=7,fused.launches=1"
)


@dataclass(frozen=True)
class Difference:
    """One guess at one batch size."""

    variant: str
    what: str
    batch: int
    expected: int
    found: int

    @property
    def right(self) -> bool:
        return self.expected == self.found


def parse_expectation(text: str) -> dict[tuple[str, str], int]:
    """`ops=7,launches=5` is about eager; `fused.launches=1` names its variant."""
    guesses: dict[tuple[str, str], int] = {}
    for pair in text.split(","):
        name, _, number = pair.strip().partition("=")
        variant, _, what = name.rpartition(".")
        if (variant or "eager") not in PROFILED or what not in _COUNTED or not number.isdecimal():
            raise ProfileError(f"expect: {_USAGE}; got {pair.strip()!r}")
        guesses[variant or "eager", what] = int(number)
    return guesses


def compare(guesses: Mapping[tuple[str, str], int], points: tuple[Point, ...]) -> list[Difference]:
    """Every guess with the count found, correct ones too; none for a variant that was not profiled."""
    return [
        Difference(variant, what, point.batch, expected, _COUNTED[what](point))
        for (variant, what), expected in guesses.items()
        for point in points
        if point.variant == variant
    ]
