# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from fused_mlp.service.ray.plan import PLACED_WITHIN_S, Known, Plan, State, plan


def replicas(*states: State, generation: int = 1, node: str = "") -> list[Known]:
    return [
        Known(f"g{generation}-{i}", generation, state, float(i), node or f"node{i}")
        for i, state in enumerate(states)
    ]


READY, STARTING, LEAVING = State.READY, State.STARTING, State.LEAVING


def test_the_missing_are_started() -> None:
    assert plan(0, 3, 1, []) == Plan(start=3)
    assert plan(0, 3, 1, replicas(READY, STARTING)) == Plan(start=1)
    assert plan(0, 3, 1, replicas(READY, READY, LEAVING)) == Plan(start=1)
    assert plan(0, 2, 1, replicas(READY, State.SILENT)) == Plan()


def test_those_that_do_not_answer_leave_first_then_the_fullest_node() -> None:
    assert plan(0, 2, 1, replicas(READY, State.SILENT, READY)).leave == ("g1-1",)
    crowded = [*replicas(READY, READY, node="a"), Known("alone", 1, READY, 9.0, "b")]
    assert plan(0, 2, 1, crowded).leave == ("g1-1",)


def test_a_rollout_starts_one_before_one_leaves() -> None:
    old = replicas(READY, READY)
    assert plan(0, 2, 2, old) == Plan(start=1)
    assert plan(0, 2, 2, old + replicas(STARTING, generation=2)) == Plan()
    assert len(plan(0, 2, 2, old + replicas(READY, generation=2)).leave) == 1
    left = [Known("old", 1, READY, 0.0, "a"), Known("gone", 1, LEAVING, 0.0, "b")]
    assert plan(0, 2, 2, left + replicas(READY, generation=2)) == Plan(start=1)
    assert plan(0, 2, 2, left + replicas(READY, READY, generation=2)).leave == ("old",)
    assert plan(0, 2, 2, replicas(READY, READY, generation=2)) == Plan()


def test_on_a_full_cluster_an_old_one_makes_room_but_never_the_last() -> None:
    waiting = Known("new", 2, STARTING, 0.0)
    late = PLACED_WITHIN_S + 1
    assert plan(1, 2, 2, [*replicas(READY, READY), waiting]) == Plan()
    assert len(plan(late, 2, 2, [*replicas(READY, READY), waiting]).leave) == 1
    assert plan(late, 2, 2, [*replicas(READY, READY, LEAVING), waiting]) == Plan()
    assert plan(late, 1, 2, [*replicas(READY), waiting]) == Plan()


def test_a_rollout_always_ends_and_always_has_as_many_that_answer() -> None:
    """Replicas become ready a turn after their start, and are gone a turn after they are told to leave."""
    known = replicas(READY, READY, READY)
    for turn in range(40):
        known = [k for k in known if k.state is not LEAVING]
        known = [Known(k.name, k.generation, READY, k.since, k.node) for k in known]
        todo = plan(turn, 3, 2, known)
        known = [
            Known(k.name, k.generation, LEAVING if k.name in todo.leave else k.state, k.since, k.node)
            for k in known
        ]
        known += [Known(f"new{turn}-{i}", 2, STARTING, turn, "n") for i in range(todo.start)]
        assert sum(k.state is READY for k in known) >= 3
    assert [k.generation for k in known] == [2, 2, 2]


def test_down_lets_all_leave() -> None:
    mixed = replicas(READY, STARTING) + replicas(READY, generation=2)
    assert set(plan(0, 0, 2, mixed).leave) == {"g1-0", "g1-1", "g2-0"}
