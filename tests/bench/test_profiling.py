# SPDX-License-Identifier: Apache-2.0
"""What docs/profiling.md shows: only valid profiles, in the words of the report."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import profiling
from bench.docs.figures.profiling import Point, profile_linear, profile_small
from bench.docs.registry import Results

COUNTS = {
    "operators": {"aten::addmm": 2},
    "launches": {"aten::addmm": 2},
    "bookkeeping": 0,
    "bytes_allocated": 8,
}


def point_of(*shares: float) -> Point:
    """Three limits, of which compute is the largest; one run for each share."""
    runs = [
        {
            "variant": "fused", "batch": 1, "time_us": 4.0, "kernel_us": None, "counts": COUNTS,
            "regime": {"name": "compute", "overhead_us": 1.0, "memory_us": 2.0, "compute_us": 3.0, "reached": share},
        }
        for share in shares
    ]  # fmt: skip
    return Point({"points": [profiling.summarize_point(runs)]}, 1)


def test_a_limit_that_explains_less_than_half_of_the_time_is_not_named() -> None:
    assert point_of(0.49).bound("fused") == "itself 49 %"
    assert point_of(0.5).bound("fused") == "compute 50 %"
    assert point_of(0.9, 0.4, 0.45).bound("fused") == "itself 45 %"


@pytest.mark.parametrize("figure", [profile_linear, profile_small])
def test_where_a_table_comes_from_is_said_after_all_that_is_said_of_it(figure: Any) -> None:
    assert figure(Results()).rpartition("\n\n")[2].startswith("<small>")


def test_a_profile_with_problems_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [{"model": "x", "problems": ["busy"]}, {"model": "x", "problems": []}]
    monkeypatch.setattr(profiling, "profile", lambda *_: reports.pop(0))
    assert profiling.profile_without_problems("--dims", "1,2")["problems"] == []
    assert reports == []


def test_a_profile_with_problems_at_every_attempt_ends_the_run_with_their_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = []

    def profile(*options: str) -> dict[str, Any]:
        attempts.append(options)
        return {"model": "x", "problems": ["other processes used 40 % of a core"]}

    monkeypatch.setattr(profiling, "profile", profile)
    with pytest.raises(SystemExit, match="other processes used 40 % of a core"):
        profiling.profile_without_problems("--dims", "1,2")
    assert len(attempts) == 3


def test_a_client_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*_: object) -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(profiling, "make_repository", Path)
    monkeypatch.setattr(profiling, "service", lambda *_, **__: nullcontext(SimpleNamespace(port=1)))
    monkeypatch.setattr(profiling, "profile", lambda *_: {"requests": 0, "phases": []})
    monkeypatch.setattr(profiling, "_call", call)
    with pytest.raises(ConnectionError, match="the server is gone"):
        profiling.measure_live(0.1)
