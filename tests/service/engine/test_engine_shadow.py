# SPDX-License-Identifier: Apache-2.0
"""The shadow through the Python module: on which thread it runs kernels, and what it reports."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch

from fused_mlp.service._engine import CompletionQueue, DType, Engine, Lane, Shadow

SIZE = {"in_features": 2, "out_features": 2}


@pytest.fixture
def engine():
    engine = Engine(workers=1)
    yield engine
    engine.stop()


def answer(engine: Engine, lane: Lane) -> None:
    engine.submit(lane, np.ones((1, 2), np.float32), DType.fp32, 1, 0, None, CompletionQueue())
    assert engine.wait_idle(30)


def settle(shadow: Shadow, batches: int) -> None:
    """Wait until the shadow has compared or skipped that many batches; it has no event to wait on."""
    pause = threading.Event()
    for _ in range(3000):
        if sum(shadow.snapshot().batches.values()) >= batches:
            return
        pause.wait(0.01)
    raise AssertionError(f"not settled in 30 s: {shadow.snapshot().batches}")


def test_shadow_runs_kernels_on_one_low_priority_thread(engine):
    seen: list[tuple[str, int, int, int]] = []

    def kernel_of(variant: str):
        def run(x: np.ndarray, y: np.ndarray) -> str:
            place = (os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), os.sched_getscheduler(0))
            seen.append((variant, *place, torch.get_num_threads()))
            y[:] = x
            return variant

        return run

    lanes = [
        engine.add_lane(kernel=kernel_of(variant), name=variant, **SIZE) for variant in ("fused", "unfused")
    ]
    shadow = engine.add_shadow("m/1", *lanes)
    engine.set_shadow(shadow, 1, 1e-3)
    # Twice: torch sets its thread count on a thread's first call.
    for batches in (1, 2):
        answer(engine, lanes[0])
        settle(shadow, batches)
    (live, *_), shadowed = seen[:1], [place for place in seen if place[1] == 19]
    assert live[0] == "fused"
    assert live[1] != 19
    assert sorted(variant for variant, *_ in shadowed) == ["fused", "fused", "unfused", "unfused"]
    assert {place[2] for place in shadowed} == {os.SCHED_BATCH}
    assert [place[3] for place in shadowed[2:]] == [1, 1]


def test_rows_that_differ_are_reported_with_both_differences(engine):
    def off(x: np.ndarray, y: np.ndarray) -> str:
        y[:] = x
        y[:, 1] += 0.25
        return "off"

    def right(x: np.ndarray, y: np.ndarray) -> str:
        y[:] = x
        return "right"

    lanes = [engine.add_lane(kernel=run, **SIZE) for run in (off, right)]
    shadow = engine.add_shadow("m/1", *lanes)
    reports: list[tuple[object, ...]] = []
    engine.on_dispute = lambda *report: reports.append(report)
    engine.set_shadow(shadow, 1, 0.1)
    for batches in (1, 2):
        answer(engine, lanes[0])
        settle(shadow, batches)
        shadow.restart()
    rows = tuple(np.array(row, np.float32).tobytes() for row in ([1, 1], [1, 1.25], [1, 1]))
    assert reports == [(shadow, epoch, 0.25, 0.25, rows) for epoch in (0, 1)]
    assert shadow.snapshot().disputed == 2
    engine.set_shadow(shadow, 1, 0.5)
    answer(engine, lanes[0])
    settle(shadow, 3)
    assert shadow.snapshot().disputed == 2


def test_share_is_checked(engine):
    lanes = [engine.add_lane(kernel=lambda x, y: "", **SIZE) for _ in range(2)]
    shadow = engine.add_shadow("m/1", *lanes)
    with pytest.raises(ValueError, match=r"from 0 to 1, got 1\.5"):
        engine.set_shadow(shadow, 1.5, 1e-3)
    assert shadow.share == 0
