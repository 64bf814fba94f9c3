# SPDX-License-Identifier: Apache-2.0
"""The traffic of a live run: an open loop, planned before the run as short slices that alternate between the arms. Each
request is due at a fixed time, independent of earlier answers, and its latency counts from that time. So the time a
request waits behind a slow server is part of its latency."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from fused_mlp.service.ab.bootstrap import Array
from fused_mlp.service.client import Client, PredictError, Prediction
from fused_mlp.service.policy.arm import Arm

LONGEST_SLICE_S = 1.0
SHORTEST_SLICE_S = 0.1
PAIRS = 30  # at least, for a usable bootstrap interval


@dataclass(frozen=True)
class Slice:
    """`due`: one time per request, in seconds from the start of the slice, ascending."""

    pair: int
    side: int  # which of the two arms
    due: Array


def slice_seconds(duration_s: float) -> float:
    return min(LONGEST_SLICE_S, max(SHORTEST_SLICE_S, duration_s / (2 * PAIRS)))


def plan(duration_s: float, rate: float) -> Iterator[Slice]:
    """Random arrivals, independent of each other and of the answers: a Poisson process with a fixed count per slice."""
    length = slice_seconds(duration_s)
    rng = np.random.default_rng(1)
    for pair in range(round(duration_s / (2 * length))):
        # The order alternates, so that an advantage of the second slice goes to both arms alike.
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        due = np.sort(rng.uniform(0, length, max(1, round(rate * length))))
        yield from (Slice(pair, side, due) for side in order)


SENDERS = 32  # threads; also the limit of concurrent requests
PROBE_SENDERS = 8
PROBE_S = 0.5
# The automatic rate is this share of the probe's: low enough for short queues and a schedule that can be kept.
PROBE_SHARE = 0.35
MAX_AUTOMATIC_RATE = 1000.0


@dataclass(frozen=True)
class SliceResult:
    """Seconds, for the answered requests."""

    slice: Slice
    latency_s: Array
    compute_s: Array
    late_s: Array  # how long after its due time each request was sent
    elapsed_s: float
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def answered(self) -> int:
        return len(self.latency_s)


def predict(client: Client, model: str, x: Any, arm: Arm) -> Prediction:
    # Not `arm`: older servers ignore that field.
    return client.predict(model, x, version=int(arm.version), variant=arm.variant)


class Traffic:
    """inputs: each (rows, width), or arrays by name; requests take them in turn. arms: each with the number of a
    version and a variant."""

    def __init__(self, client: Client, model: str, arms: tuple[Arm, Arm], inputs: Sequence[Any]) -> None:
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
        return min(MAX_AUTOMATIC_RATE, max(1.0, float(f"{PROBE_SHARE * slower:.2g}")))

    def _predict(self, turn: int, side: int) -> float:
        x = self._inputs[turn % len(self._inputs)]
        answer = predict(self._client, self._model, x, self._arms[side])
        return answer.timings.compute_us / 1e6

    def _all(self, task: Any, senders: int) -> list[Any]:
        futures = [self._senders.submit(task) for _ in range(senders)]
        return [future.result() for future in futures]
