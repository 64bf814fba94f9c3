# SPDX-License-Identifier: Apache-2.0
"""What to do next about the replicas of a fleet: a plain function of what is known of them. Replicas are replaced one
by one: a new one answers before an old one leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# How long a new replica may wait for a place before an old one makes room for it: the cluster may be full.
PLACED_WITHIN_S = 15.0


class State(StrEnum):
    STARTING = "starting"  # not ready yet
    READY = "ready"
    SILENT = "silent"  # has not been heard of for a while
    UNREADY = "unready"  # was ready, and says that it is not
    LEAVING = "leaving"  # out of the endpoints, and soon stopped


@dataclass(frozen=True)
class Known:
    """What the plan looks at of one replica."""

    name: str
    generation: int
    state: State
    since: float  # of its start
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
    """Those that do not answer, then from the nodes that have most; of those the youngest."""
    left = list(replicas)
    chosen: list[str] = []
    while left and len(chosen) < count:
        on_node = Counter(replica.node for replica in left)
        last = max(left, key=lambda r: (r.state is not State.READY, on_node[r.node], r.since))
        left.remove(last)
        chosen.append(last.name)
    return chosen
