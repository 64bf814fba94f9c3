# SPDX-License-Identifier: Apache-2.0
"""CPU per request at fixed rates: how many requests a sample has, and what is not measured."""

from __future__ import annotations

import argparse
import io
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bench.serving import low_rate
from bench.serving.load import Load, Sample


def test_samples_have_enough_requests_and_follow_a_run_that_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: set[tuple[str, int]] = set()
    requests: dict[int, int] = {}
    runs: list[str] = []

    def warm_up(load: Load, system: Any, _: int) -> tuple[int, float]:
        warmed.add((system.name, load.per_second))
        return 0, 0.0

    def measure(system: Any, load: Load, seconds: float, pace: float) -> Sample:
        assert (system.name, load.per_second) in warmed
        requests[load.per_second] = int(seconds * pace)
        runs.append(system.name)
        return Sample(requests[load.per_second], pace, 1.0, 1.0, 1.0, 1.0, {})

    monkeypatch.setattr(low_rate, "service", lambda name, *_, **__: nullcontext(SimpleNamespace(name=name)))
    monkeypatch.setattr(low_rate, "verify", lambda *_: None)
    monkeypatch.setattr(Load, "run", warm_up)
    monkeypatch.setattr(low_rate, "measure", measure)
    options = argparse.Namespace(rounds=2, share=1.0)
    found = low_rate.measure_model(tmp_path, "digits", options, tmp_path, Console(file=io.StringIO()))
    assert {rate: sent >= (300 if rate == 100 else 1000) for rate, sent in requests.items()} == {
        100: True, 1000: True, 5000: True,
    }  # fmt: skip
    assert {name: runs.count(name) for name in found} == dict.fromkeys(low_rate.THREADS, 2 * len(requests))
    assert {rate: each["requests"] for rate, each in found["one thread"].items()} == {
        str(rate): sent for rate, sent in requests.items()
    }
