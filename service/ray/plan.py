# SPDX-License-Identifier: Apache-2.0
"""Decides how many replicas a fleet should have, by their utilization (up at once, down slowly), and the next step for
each: pure functions of known states and of times that the caller gives. Replicas are replaced one by one: a new one
answers before an old one leaves."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

# A sum of utilizations this little above the target starts no replica: it would end a moment later.
TOLERANCE = 0.1
# Several consecutive looks must ask for more: one garbage collection or one scrape is not load.
UP_AFTER_S = 1.5


@dataclass
class Scaler:
    target: float  # utilization of each replica, from 0 to 1
    down_after_s: float
    _needed: deque[tuple[float, int]] = field(default_factory=deque)  # wanted replicas at each look

    def wanted(self, now: float, current: int, fewest: int, most: int, loads: Sequence[float]) -> int:
        """`loads`: the utilization of each replica that answers; `current`: the number of replicas, those being started
        included. More replicas if all looks of the last UP_AFTER_S ask for them, fewer if all of the last
        `down_after_s` allow it."""
        current = min(max(current, fewest), most)
        if not loads:  # no replica has reported yet, or none can be reached
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
        if needed < current:  # with a margin, so that the next look does not undo it
            return min(current, max(1, math.ceil(total * (1 + TOLERANCE) / self.target)))
        return needed

    def _within(self, now: float, period_s: float) -> list[int]:
        """The looks of that period; none if they do not reach back to its beginning."""
        if self._needed[0][0] > now - period_s:
            return []
        return [needed for when, needed in self._needed if when >= now - period_s] or [self._needed[-1][1]]


# How long a new replica may wait for a place before an old one makes room for it: the cluster may be full.
PLACED_WITHIN_S = 15.0


class State(StrEnum):
    STARTING = "starting"  # not ready yet
    READY = "ready"
    SILENT = "silent"  # has not reported for a while
    UNREADY = "unready"  # was ready, and reports that it is not
    LEAVING = "leaving"  # out of the endpoints, to be stopped soon


@dataclass(frozen=True)
class Known:
    """The state of one replica that the plan uses."""

    name: str
    generation: int
    state: State
    since: float  # when it started
    node: str = ""  # empty: not placed yet


@dataclass(frozen=True)
class Plan:
    start: int = 0
    leave: tuple[str, ...] = ()


def plan(now: float, wanted: int, generation: int, replicas: Sequence[Known]) -> Plan:
    staying = [replica for replica in replicas if replica.state is not State.LEAVING]
    old = [replica for replica in staying if replica.generation != generation]
    if wanted == 0:
        return Plan(leave=tuple(replica.name for replica in staying))
    if len(staying) < wanted:
        return Plan(start=wanted - len(staying))
    if old:
        return _replace(now, wanted, staying, old, leaving=len(staying) < len(replicas))
    return Plan(leave=tuple(_to_leave(staying, len(staying) - wanted)))


def _replace(
    now: float, wanted: int, staying: Sequence[Known], old: Sequence[Known], *, leaving: bool
) -> Plan:
    """One more than wanted while an old one leaves; with more than that, old ones leave first."""
    coming = [r for r in staying if r not in old and r.state is not State.READY]
    if not coming:
        return Plan(leave=tuple(_to_leave(old, 1))) if len(staying) > wanted else Plan(start=1)
    unplaced = any(not replica.node and now - replica.since > PLACED_WITHIN_S for replica in coming)
    answering = sum(replica.state is State.READY for replica in staying)
    if unplaced and answering > 1 and not leaving:
        return Plan(leave=tuple(_to_leave(old, 1)))
    return Plan()


def _to_leave(replicas: Sequence[Known], count: int) -> list[str]:
    """Replicas that do not answer first, then from the nodes with the most; among those the youngest."""
    left = list(replicas)
    chosen: list[str] = []
    while left and len(chosen) < count:
        on_node = Counter(replica.node for replica in left)
        last = max(left, key=lambda r: (r.state is not State.READY, on_node[r.node], r.since))
        left.remove(last)
        chosen.append(last.name)
    return chosen
