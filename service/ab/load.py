# SPDX-License-Identifier: Apache-2.0
"""The load of a live run: an open loop. Each request is due at a fixed time, independent of earlier answers, and its
latency counts from that time. So the time a request waits behind a slow server is part of its latency."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.ab.blocks import Array
from fused_mlp.service.ab.schedule import Slice
from fused_mlp.service.arm import Arm
from fused_mlp.service.client import Client, PredictError, Prediction

SENDERS = 32  # threads; also the limit of concurrent requests
PROBE_SENDERS = 8
PROBE_S = 0.5
# The automatic rate is this share of the probe's: low enough for short queues and a schedule that can be kept.
PROBE_SHARE = 0.35
MOST_AUTOMATIC_RATE = 1000.0


@dataclass(frozen=True)
class SliceResult:
    """Seconds, of the requests that were answered."""

    slice: Slice
    latency_s: Array
    compute_s: Array
    late_s: Array  # how long after its due time each request was sent
    elapsed_s: float
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def answered(self) -> int:
        return len(self.latency_s)


def predict(client: Client, model: str, x: NDArray[Any], arm: Arm) -> Prediction:
    # Not by `arm`, which servers before that field would ignore.
    return client.predict(model, x, version=int(arm.version), variant=arm.variant)


class Load:
    """inputs: (n, rows, width); requests take them in turn. arms: each with the number of a version and a variant."""

    def __init__(self, client: Client, model: str, arms: tuple[Arm, Arm], inputs: NDArray[Any]) -> None:
        self._client = client
        self._model = model
        self._arms = arms
        self._inputs = inputs
        self._senders = ThreadPoolExecutor(SENDERS, "ab-sender")

    def close(self) -> None:
        self._senders.shutdown(cancel_futures=True)

    def run(self, planned: Slice) -> SliceResult:
        requests = len(planned.due)
        latency, compute, late = (np.full(requests, np.nan) for _ in range(3))
        failures: Counter[str] = Counter()
        turns = count()
        start = time.perf_counter() + 0.005  # all senders are waiting by then

        def send() -> None:
            while (turn := next(turns)) < requests:
                due = start + planned.due[turn]
                if (wait := due - time.perf_counter()) > 0:
                    time.sleep(wait)
                late[turn] = time.perf_counter() - due
                try:
                    compute[turn] = self._predict(turn, planned.side)
                    latency[turn] = time.perf_counter() - due
                except PredictError as error:
                    failures[str(error)] += 1

        self._all(send, SENDERS)
        elapsed = time.perf_counter() - start
        answered = ~np.isnan(latency)
        return SliceResult(
            planned, latency[answered], compute[answered], late[answered], elapsed, Counter(failures)
        )

    def probe(self, side: int, seconds: float = PROBE_S) -> float:
        """Requests per second of a closed loop of a few senders: the limit of client and server together."""
        until = time.perf_counter() + seconds
        turns = count()

        def call() -> int:
            done = 0
            while time.perf_counter() < until:
                self._predict(next(turns), side)
                done += 1
            return done

        start = time.perf_counter()
        done: int = sum(self._all(call, PROBE_SENDERS))
        return done / (time.perf_counter() - start)

    def automatic_rate(self) -> float:
        """A rate that both arms can keep. Warms up both."""
        slower = min(self.probe(0), self.probe(1))
        return min(MOST_AUTOMATIC_RATE, max(1.0, float(f"{PROBE_SHARE * slower:.2g}")))

    def _predict(self, turn: int, side: int) -> float:
        x = self._inputs[turn % len(self._inputs)]
        answer = predict(self._client, self._model, x, self._arms[side])
        return answer.timings.compute_us / 1e6

    def _all(self, task: Any, senders: int) -> list[Any]:
        futures = [self._senders.submit(task) for _ in range(senders)]
        return [future.result() for future in futures]
