# SPDX-License-Identifier: Apache-2.0
"""Decides when to retry versions that could not be loaded: a share may be away for a while, or memory short, which
their files do not show. Used by one thread at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0


@dataclass
class _Retry:
    versions: set[int]
    pause_s: float
    at: float


class Retries:
    """`failed`: the versions that could not be loaded, by model."""

    def __init__(
        self, failed: Callable[[], Mapping[str, set[int]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failed = failed
        self._clock = clock
        self._retries: dict[str, _Retry] = {}

    def due(self) -> list[str]:
        """The models to try now; each after twice the pause before it, unless other versions of it have failed."""
        failed, now = self._failed(), self._clock()
        before, self._retries = self._retries, {}
        due = []
        for name, versions in failed.items():
            retry = before.get(name)
            if retry is None or retry.versions != versions:
                retry = _Retry(set(versions), FIRST_PAUSE_S, now + FIRST_PAUSE_S)
            elif now >= retry.at:
                due.append(name)
                retry.pause_s = min(2 * retry.pause_s, LONGEST_PAUSE_S)
                retry.at = now + retry.pause_s
            self._retries[name] = retry
        return due
