# SPDX-License-Identifier: Apache-2.0
"""How many replicas, on a clock that the test moves."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator

import pytest

from fused_mlp.service.ray.plan import UP_AFTER_S, Scaler

PERIOD_S = 0.5


class Fleet:
    """Replicas that share a load evenly, and are there as soon as they are wanted."""

    def __init__(self, count: int, down_after_s: float = 60, most: int = 8) -> None:
        self.scaler = Scaler(0.7, down_after_s)
        self.count, self.most, self.now = count, most, 0.0
        self.changes: list[tuple[float, int]] = []

    def run(self, seconds: float, loads: Iterable[float]) -> None:
        """`loads`: what all replicas together are asked to do, in replicas that would be fully used."""
        for load in itertools.islice(loads, int(seconds / PERIOD_S)):
            self.now += PERIOD_S
            each = min(1.0, load / self.count)
            wanted = self.scaler.wanted(self.now, self.count, 2, self.most, [each] * self.count)
            if wanted != self.count:
                self.changes.append((self.now, wanted))
            self.count = wanted


def test_more_load_starts_replicas_within_seconds() -> None:
    fleet = Fleet(2)
    fleet.run(100, itertools.repeat(1.0))
    assert fleet.count == 2
    fleet.run(10, itertools.repeat(5.0))
    assert fleet.count == 8
    assert fleet.changes[0][0] - 100 <= UP_AFTER_S + 2 * PERIOD_S


def test_less_load_stops_replicas_after_the_time_that_was_asked_for_and_not_before() -> None:
    fleet = Fleet(6, down_after_s=60)
    fleet.run(30, itertools.repeat(4.0))
    assert fleet.count == 6
    fleet.run(59, itertools.repeat(0.5))
    assert fleet.count == 6
    fleet.run(3, itertools.repeat(0.5))
    assert fleet.count == 2


def test_one_peak_within_the_time_keeps_what_it_needed() -> None:
    fleet = Fleet(6, down_after_s=60)
    fleet.run(40, itertools.repeat(0.5))
    fleet.run(2, itertools.repeat(4.1))
    fleet.run(50, itertools.repeat(0.5))
    assert fleet.changes == []
    fleet.run(20, itertools.repeat(0.5))
    assert fleet.count == 2


def test_a_peak_of_a_moment_starts_nothing() -> None:
    fleet = Fleet(2)
    fleet.run(100, itertools.cycle([0.5, 0.5, 2.0]))
    assert fleet.changes == []


@pytest.mark.parametrize("middle", [1.4, 2.1, 2.8, 3.5])
def test_a_load_that_trembles_does_not_make_the_number_flap(middle: float) -> None:
    tremble = random.Random(1)

    def loads() -> Iterator[float]:
        for step in itertools.count():  # now more, now less, a few minutes each, and noise
            yield middle * (1 + 0.03 * math.sin(step / 80) + tremble.uniform(-0.03, 0.03))

    fleet = Fleet(2, down_after_s=30)
    fleet.run(3600, loads())
    numbers = [count for _, count in fleet.changes]
    assert numbers == sorted(numbers)  # up to what it needs, and never down again
    assert len(numbers) <= 3


def test_bounds_hold_whatever_the_load() -> None:
    fleet = Fleet(2, down_after_s=5, most=4)
    fleet.run(100, itertools.repeat(100.0))
    assert fleet.count == 4
    fleet.run(100, itertools.repeat(0.0))
    assert fleet.count == 2
    assert fleet.scaler.wanted(fleet.now, 9, 2, 4, []) == 4


def test_without_a_report_nothing_changes() -> None:
    scaler = Scaler(0.7, 1)
    assert {scaler.wanted(now, 5, 2, 8, []) for now in range(100)} == {5}


def test_replicas_that_are_still_starting_are_not_asked_for_twice() -> None:
    scaler = Scaler(0.7, 60)
    wanted = 2
    for step in range(20):
        wanted = scaler.wanted(step * PERIOD_S, wanted, 2, 8, [1.0, 1.0])  # the two that were there
    assert wanted == 3
