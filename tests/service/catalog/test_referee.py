# SPDX-License-Identifier: Apache-2.0
"""The referee: its verdicts on outputs of real and of broken kernels, and what it does with too much work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fused_mlp.kernels import Kernel
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.kernels.backends.eager import EagerKernel
from fused_mlp.models import Mlp
from fused_mlp.models.weights.precision import to_precision
from fused_mlp.service import _engine
from fused_mlp.service._engine import Shadow, Verdict
from fused_mlp.service.catalog.records import ServedVersion
from fused_mlp.service.catalog.referee import MAX_WAITING, Dispute, Referee, judge
from tests.kernels.cpu_models import plain_mlp, random_mlp, rows_for, run

Values = np.ndarray[Any, Any]


@pytest.fixture
def engine() -> Iterator[_engine.Engine]:
    engine = _engine.Engine(workers=1)
    yield engine
    engine.stop()


@pytest.fixture
def add_shadow(engine: _engine.Engine) -> Callable[[str], Shadow]:
    def add(name: str) -> Shadow:
        lanes = [engine.add_lane(kernel=lambda x, y: "", in_features=1, out_features=1) for _ in range(2)]
        return engine.add_shadow(name, *lanes)

    return add


@pytest.fixture
def shadow(add_shadow: Callable[[str], Shadow]) -> Shadow:
    return add_shadow("m/1")


def version_of(mlp: Mlp, fused: Kernel) -> ServedVersion:
    infos = (fused.describe(), EagerKernel(mlp, "cpu", None).describe())
    return ServedVersion("m", 1, "READY", kernels=infos, fused=fused)


def judge_outputs(
    shadow: Shadow, mlp: Mlp, x: Values, fused: Values | None = None, unfused: Values | None = None
) -> tuple[Verdict, str]:
    """Outputs that are not given are those of right kernels."""
    right = CpuKernel(mlp, 1)
    fused = run(right, x) if fused is None else fused
    unfused = run(EagerKernel(mlp, "cpu", None), x) if unfused is None else unfused
    dispute = Dispute(shadow, shadow.epoch, 0.5, 0.5, x.tobytes(), fused.tobytes(), unfused.tobytes())
    return judge(version_of(mlp, right), mlp, dispute)


def in_dtype(mlp: Mlp, dtype: str) -> Mlp:
    return random_mlp(mlp.spec.model_copy(update={"dtype": dtype}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_right_kernels_are_within_their_bounds(shadow: Shadow, dtype: str) -> None:
    mlp = in_dtype(plain_mlp(20, 30, 5, activation="gelu", output="softmax"), dtype)
    verdict, reason = judge_outputs(shadow, mlp, rows_for(mlp, 4))
    assert verdict is Verdict.within_bound
    assert "fused is not proven wrong" in reason


def test_the_one_that_is_wrong_is_named_with_numbers(shadow: Shadow) -> None:
    mlp = plain_mlp(20, 30, 5)
    x = rows_for(mlp, 3)
    wrong = run(CpuKernel(mlp, 1), x)
    wrong[1, 2] += 0.25
    verdict, reason = judge_outputs(shadow, mlp, x, fused=wrong)
    assert verdict is Verdict.fused_wrong
    assert "fused is wrong: 0.25 from float64, where rounding explains" in reason
    assert "unfused is not proven wrong: " in reason
    assert judge_outputs(shadow, mlp, x, unfused=wrong)[0] is Verdict.unfused_wrong
    assert judge_outputs(shadow, mlp, x, fused=wrong, unfused=wrong)[0] is Verdict.both_wrong
    wrong[1, 2] = np.nan
    assert judge_outputs(shadow, mlp, x, fused=wrong)[0] is Verdict.fused_wrong


def test_int8_that_costs_more_on_live_rows_than_was_measured_is_said(shadow: Shadow) -> None:
    mlp = to_precision(plain_mlp(20, 30, 5), "int8")
    x = rows_for(mlp, 3)
    x[:, 0] *= 1000
    verdict, reason = judge_outputs(shadow, mlp, x)
    assert verdict is Verdict.int8_cost
    assert reason.startswith("int8 costs 50% on live rows, not measured when it was made: import again with")
    wrong = run(CpuKernel(mlp, 1), x)
    wrong[1, 2] += 1e6
    assert judge_outputs(shadow, mlp, x, fused=wrong)[0] is Verdict.fused_wrong
    x[0, 0] = np.nan
    assert judge_outputs(shadow, mlp, x)[0] is Verdict.within_bound


def test_unfused_that_overflows_where_fused_does_not_is_said(shadow: Shadow) -> None:
    mlp = in_dtype(plain_mlp(20, 30, 5), "float16")
    x = 1e5 * rows_for(mlp, 3)  # float16 ends at 65504; the fused kernel computes in float32
    verdict, reason = judge_outputs(shadow, mlp, x)
    assert verdict is Verdict.unfused_not_finite
    assert "unfused is not finite where fused is" in reason


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_proves_nothing(shadow: Shadow, bad: float) -> None:
    mlp = plain_mlp(20, 30, 5)
    x = rows_for(mlp, 2)
    x[0, 3] = bad
    outputs = run(CpuKernel(mlp, 1), x)
    outputs[0] = 7.0
    assert judge_outputs(shadow, mlp, x, fused=outputs)[0] is Verdict.within_bound
    outputs[1] = 7.0  # the row beside it is judged as ever
    assert judge_outputs(shadow, mlp, x, fused=outputs)[0] is Verdict.fused_wrong


def test_a_kernel_that_went_wrong_is_found_where_the_bound_is_too_wide(shadow: Shadow) -> None:
    """In a deep model rounding explains errors that are large beside those of the rows of the check at load, which do
    not depend on callers' inputs."""

    class Off(CpuKernel):
        def run(self, x: Values, y: Values) -> str:
            strategy = super().run(x, y)
            y *= 1.0001
            return strategy

    mlp = plain_mlp(64, *[256] * 7, 10)
    x = rows_for(mlp, 1)
    right, off = run(CpuKernel(mlp, 1), x), Off(mlp, 1)
    assert judge_outputs(shadow, mlp, x, fused=np.float32(1.0001) * right)[0] is Verdict.within_bound
    assert judge_outputs(shadow, mlp, x, fused=np.float32(1.01) * right)[0] is Verdict.fused_wrong
    dispute = Dispute(shadow, shadow.epoch, 1e-4, 1e-4, x.tobytes(), run(off, x).tobytes(), right.tobytes())
    verdict, reason = judge(version_of(mlp, off), mlp, dispute)
    assert verdict is Verdict.fused_wrong
    assert "fused no longer passes its check at load" in reason


class Court:
    """A referee whose cases wait until the test opens the door."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.door = threading.Event()
        self.settled: list[str] = []
        self.priorities: set[int] = set()
        self.referee = Referee(self._owner, lambda *_: None)

    def _owner(self, shadow: Shadow) -> None:
        self.priorities.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        self.entered.release()
        assert self.door.wait(30)
        self.settled.append(shadow.name)

    def report(self, shadow: Shadow) -> None:
        self.referee.report(shadow, shadow.epoch, 1.0, 1.0, (b"", b"", b""))


@pytest.fixture
def court() -> Iterator[Court]:
    court = Court()
    court.referee.start()
    yield court
    court.door.set()
    court.referee.stop()


def not_judged(shadow: Shadow) -> int:
    return shadow.snapshot().verdicts["not_judged"]


def test_a_flood_of_differences_is_counted_and_dropped(
    court: Court, add_shadow: Callable[[str], Shadow]
) -> None:
    first, second = add_shadow("first/1"), add_shadow("second/1")
    court.report(first)
    assert court.entered.acquire(timeout=30)
    for _ in range(100):
        court.report(first)
    assert not_judged(first) == 99  # one is judged, one waits
    court.report(second)  # has its turn beside a noisy neighbour
    assert not_judged(second) == 0
    more = [add_shadow(f"more/{number}") for number in range(MAX_WAITING)]
    for each in more:
        court.report(each)
    assert sum(map(not_judged, more)) == 2
    court.door.set()
    for _ in range(MAX_WAITING):
        assert court.entered.acquire(timeout=30)
    assert court.settled[:2] == ["first/1", "first/1"]
    assert court.priorities == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_stopping_does_not_wait_for_what_waits(court: Court, add_shadow: Callable[[str], Shadow]) -> None:
    for name in ("first/1", "second/1"):
        court.report(add_shadow(name))
    assert court.entered.acquire(timeout=30)
    court.door.set()
    court.referee.stop()
    assert court.settled[0] == "first/1"
