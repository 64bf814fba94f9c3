# SPDX-License-Identifier: Apache-2.0
"""Results are summaries: medians over the rounds, and no raw samples."""

from __future__ import annotations

from bench.docs.registry import RESULTS
from bench.serving.ab import COLUMNS, PLAIN, SHADOW, change, summarize
from bench.serving.neighbours import ALONE, BIG_ALONE, SITUATIONS
from bench.serving.neighbours import summarize as summarize_neighbours
from bench.summary import medians


def test_medians_are_taken_number_by_number_and_text_is_kept() -> None:
    rounds = [
        {"rate": rate, "where": "here", "us": {"50": [rate, 1]}, "peak": None} for rate in (3.0, 9.0, 1.0)
    ]
    assert medians(rounds) == {"rate": 3.0, "where": "here", "us": {"50": [3.0, 1]}, "peak": None}
    assert medians([{"busy": True}, {"busy": True}])["busy"] is True


def test_the_cost_of_a_policy_is_a_share_of_the_plain_server_with_an_interval() -> None:
    turns = {
        arm: [dict.fromkeys(COLUMNS, us) for us in (us, us, us)]
        for arm, us in ((PLAIN, 10.0), (SHADOW, 11.0))
    }
    found = {"arms": summarize({arm: {"128": taken} for arm, taken in turns.items()})}
    assert found["arms"][PLAIN]["128"]["cpu_us"] == {"mean": 10.0, "change": [1.0, 1.0, 1.0]}
    cost = change(found, SHADOW, 128, "cpu_us")
    assert cost.low <= cost.value == 1.1 <= cost.high


def test_neighbours_are_compared_within_a_round() -> None:
    def each(p99: float, rows: float) -> dict[str, dict[str, float]]:
        return {"probe": {"p99_ms": p99}, "other": {"rows_per_s": rows}}

    rounds = [
        {
            name: each(1.0, 100.0) if name in (ALONE, BIG_ALONE) else each(slower, 100 / slower)
            for name in SITUATIONS
        }
        for slower in (2.0, 4.0, 5.0)
    ]
    found = summarize_neighbours(rounds)["beside wide, 8 x 256 rows"]
    assert found["p99_of_alone"] == 4.0
    assert found["rows_of_alone"] == 0.25


def test_the_stored_results_are_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in RESULTS.glob("*.json")) < 4000
