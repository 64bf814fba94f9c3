# SPDX-License-Identifier: Apache-2.0
"""Many rounds as one record of medians: the results hold no raw samples. Knows no benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any


def medians(rounds: Sequence[Any]) -> Any:
    """The median of each number; all rounds have the same keys. Text and None are those of the first round."""
    first = rounds[0]
    if isinstance(first, Mapping):
        return {key: medians([each[key] for each in rounds]) for key in first}
    if isinstance(first, list):
        return [medians(each) for each in zip(*rounds, strict=True)]
    if isinstance(first, int | float) and not isinstance(first, bool):
        return median(rounds)
    return first


def medians_by_load(samples: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, Any]]:
    """By two keys, such as system and load."""
    return {
        system: {load: medians(rounds) for load, rounds in loads.items()} for system, loads in samples.items()
    }
