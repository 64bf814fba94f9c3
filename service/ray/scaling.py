# SPDX-License-Identifier: Apache-2.0
"""How many replicas a fleet should have, by their utilization: up at once, down slowly. Plain arithmetic on times that
the caller gives."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

# A sum of utilizations this little above what the replicas are meant for starts none: it would end a moment later.
TOLERANCE = 0.1
# Several looks in a row must ask for more: one garbage collection or one scrape is no load.
UP_AFTER_S = 1.5


@dataclass
class Scaler:
    target: float  # utilization of each replica, from 0 to 1
    down_after_s: float
    _needed: deque[tuple[float, int]] = field(default_factory=deque)  # what each look asked for

    def wanted(self, now: float, current: int, fewest: int, most: int, loads: Sequence[float]) -> int:
        """`loads`: the utilization of each replica that answers, of `current` that are there or being started. More
        replicas if all looks of the last UP_AFTER_S ask for them, fewer if all of the last `down_after_s` allow it."""
        current = min(max(current, fewest), most)
        if not loads:  # none has answered yet, or none can be heard: nothing is known
            return current
        self._needed.append((now, self._look(current, sum(loads))))
        while len(self._needed) > 1 and self._needed[1][0] <= now - max(self.down_after_s, UP_AFTER_S):
            self._needed.popleft()
        up = self._within(now, UP_AFTER_S)
        if up and min(up) > current:
            return min(*up, most)
        down = self._within(now, self.down_after_s)
        if down and max(down) < current:
            return max(*down, fewest)
        return current

    def _look(self, current: int, total: float) -> int:
        needed = max(1, math.ceil(total / self.target))
        if needed > current and total <= current * self.target * (1 + TOLERANCE):
            return current
        if needed < current:  # with room to spare, so that the next look does not take it back
            return min(current, max(1, math.ceil(total * (1 + TOLERANCE) / self.target)))
        return needed

    def _within(self, now: float, period_s: float) -> list[int]:
        """The looks of that period; none if they do not reach back to its begin."""
        if self._needed[0][0] > now - period_s:
            return []
        return [needed for when, needed in self._needed if when >= now - period_s] or [self._needed[-1][1]]
