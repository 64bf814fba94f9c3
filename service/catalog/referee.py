# SPDX-License-Identifier: Apache-2.0
"""Judges batches on which the variants of a version differ: which of them is further from float64 than rounding
explains. On one thread of normal priority, for at most a tenth of the time, whatever callers send."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Thread

import numpy as np

from fused_mlp.kernels.base import Float32
from fused_mlp.kernels.error_bound import PRECISIONS, Bounded, forward_with_bound
from fused_mlp.kernels.errors import KernelRefuted
from fused_mlp.kernels.registry import check
from fused_mlp.models import Mlp
from fused_mlp.models.weights.precision_error import percent
from fused_mlp.service._engine import Shadow, Verdict
from fused_mlp.service.catalog.records import ServedVersion
from fused_mlp.variant import Variant

log = logging.getLogger(__name__)

MAX_WAITING = 4  # batches, at most one of a version; each has some rows, of 4 MB or less
IDLE_PER_WORK = 9.0  # seconds of pause for each second of work
LONGEST_PAUSE_S = 60.0


# By whether fused and unfused are wrong.
_VERDICTS = {
    (False, False): Verdict.within_bound,
    (True, False): Verdict.fused_wrong,
    (False, True): Verdict.unfused_wrong,
    (True, True): Verdict.both_wrong,
}


@dataclass(frozen=True)
class Dispute:
    """Rows on which the variants differ, as the engine hands them over; the differences are of the whole batch."""

    shadow: Shadow
    epoch: int  # the shadow's, when the batch was answered
    absolute: float
    relative: float
    x: bytes
    fused: bytes
    unfused: bytes


class Referee:
    """`owner` finds the version of a shadow, None when it was unloaded; `settle` gets each verdict and its reason."""

    def __init__(
        self, owner: Callable[[Shadow], ServedVersion | None], settle: Callable[[Dispute, Verdict, str], None]
    ) -> None:
        self._owner = owner
        self._settle = settle
        self._changed = Condition()
        self._waiting: dict[str, Dispute] = {}  # by the shadow's name, oldest first
        self._stopped = False
        self._thread: Thread | None = None

    def start(self) -> None:
        """Once; not on the shadow's thread, whose low priority the new one would inherit."""
        with self._changed:
            if self._thread is None and not self._stopped:
                self._thread = Thread(target=self._work, name="referee", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Drops the disputes that wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def report(
        self, shadow: Shadow, epoch: int, absolute: float, relative: float, rows: tuple[bytes, bytes, bytes]
    ) -> None:
        """Called on the shadow's thread. Never waits: a dispute that does not fit is counted and dropped."""
        with self._changed:
            if shadow.name not in self._waiting and len(self._waiting) < MAX_WAITING:
                self._waiting[shadow.name] = Dispute(shadow, epoch, absolute, relative, *rows)
                self._changed.notify()
                return
        shadow.record(Verdict.not_judged)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopped)
                if self._stopped:
                    return
                dispute = self._waiting.pop(next(iter(self._waiting)))
            started = time.monotonic()
            try:
                version = self._owner(dispute.shadow)
                if version is not None:
                    assert version.weights is not None  # a version with kernels has them
                    self._settle(dispute, *judge(version, version.weights.read(), dispute))
            except Exception:
                dispute.shadow.record(Verdict.not_judged)
                log.exception(
                    "%s: a difference between the variants could not be judged", dispute.shadow.name
                )
            pause = min(IDLE_PER_WORK * (time.monotonic() - started), LONGEST_PAUSE_S)
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, pause)


def judge(version: ServedVersion, mlp: Mlp, dispute: Dispute) -> tuple[Verdict, str]:
    """The verdict, and the numbers behind it."""
    x = np.frombuffer(dispute.x, np.float32).reshape(-1, mlp.spec.in_features)
    outputs: dict[Variant, Float32] = {
        "fused": np.frombuffer(dispute.fused, np.float32).reshape(len(x), -1),
        "unfused": np.frombuffer(dispute.unfused, np.float32).reshape(len(x), -1),
    }
    dtypes = {info.variant: info.dtype for info in version.kernels}
    bounds = {dtype: forward_with_bound(mlp, x, PRECISIONS[dtype]) for dtype in set(dtypes.values())}
    wrong = {variant: not bounds[dtypes[variant]].admits(y).all() for variant, y in outputs.items()}
    # With NaN or infinity in the input, any output will do.
    overflowed = np.isfinite(outputs["fused"]) & ~np.isfinite(outputs["unfused"])
    overflowed &= np.isfinite(x).all(axis=1, keepdims=True)
    reasons = [
        f"fused and unfused differ by {dispute.absolute:.3g} on the same rows, {dispute.relative:.3g} of the outputs' "
        f"size, where {dispute.shadow.tolerance:.3g} is allowed"
    ]
    if overflowed.any():
        reasons.append("unfused is not finite where fused is")
    for variant, y in outputs.items():
        finding = "wrong" if wrong[variant] else "not proven wrong"
        reasons.append(f"{variant} is {finding}: {_distance(bounds[dtypes[variant]], y)}")
    if not any(wrong.values()) and (refuted := _check_again(version, mlp)):
        wrong["fused"] = True
        reasons.append(f"fused no longer passes its check at load: {refuted}")
    verdict = _VERDICTS[wrong["fused"], wrong["unfused"]]
    if verdict is Verdict.within_bound and overflowed.any():
        verdict = Verdict.unfused_not_finite
    elif verdict is Verdict.within_bound and dtypes["fused"] == "int8" and np.isfinite(x).all():
        verdict = Verdict.int8_cost
        reasons.insert(0, _cost(version, dispute))
    return verdict, "; ".join(reasons)


def _cost(version: ServedVersion, dispute: Dispute) -> str:
    error = version.precision_error
    measured = "not measured" if error is None else f"measured {percent(error.largest)}"
    return (
        f"int8 costs {percent(dispute.relative)} on live rows, {measured} when it was made: import again with "
        "--calibrate and such rows"
    )


def _check_again(version: ServedVersion, mlp: Mlp) -> str:
    """Why the fused kernel fails its check at load by now; empty: it passes. The bound has to hold for the worst input
    and is wide for deep models. The check has its own inputs, which no caller chooses, and is as strict as at load."""
    if version.fused is None:
        return ""
    try:
        check(version.fused, mlp)
    except KernelRefuted as error:
        return str(error)
    return ""


def _distance(bound: Bounded, y: Float32) -> str:
    """In words, for the output that is furthest outside of its bound or closest to it."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(y - bound.value)
        beyond = np.where(np.isinf(bound.error), -np.inf, distance - bound.error)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(beyond), np.inf, beyond)), beyond.shape)
    return f"{distance[worst]:.3g} from float64, where rounding explains {bound.error[worst]:.3g}"
