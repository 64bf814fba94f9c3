# SPDX-License-Identifier: Apache-2.0
"""When a failed call is tried again. Computes waiting times only; the clients do the waiting."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from fused_mlp.service.client.errors import PredictError


@dataclass(frozen=True)
class RetryPolicy:
    """When a failed call is tried again.

    UNAVAILABLE is retried with exponential back-off; RESOURCE_EXHAUSTED only when the server says when to come back.
    Predicting has no side effects, so a second try is always safe. A retry never outlives the call's deadline: when
    the wait would, the call fails at once with the error at hand.

    Args:
        attempts: The most calls that are made, the first included; 1 turns retries off.
        first_wait_s: The wait after the first failure; each further one is twice as long.
        longest_wait_s: No wait is longer, unless the server asks for it.
        jitter: Each wait grows by up to this share, so that clients do not retry all at once.
        random: A source of numbers from 0 to 1, for tests.
    """

    attempts: int = 5
    first_wait_s: float = 0.1
    longest_wait_s: float = 2.0
    jitter: float = 0.2  # each wait grows by up to this share, so that clients do not retry all at once
    random: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_wait_s < 0 or self.longest_wait_s < 0 or self.jitter < 0:
            raise ValueError(f"attempts must be at least 1, and waits and jitter at least 0: got {self}")

    def wait_s(self, error: PredictError, attempt: int) -> float | None:
        """How long to wait after `attempt` (1, 2, ...) failed with `error`; None when it is final."""
        if attempt >= self.attempts:
            return None
        backoff = min(self.first_wait_s * 2.0 ** min(attempt - 1, 64), self.longest_wait_s)
        if error.code == grpc.StatusCode.UNAVAILABLE:
            wait = max(backoff, error.retry_after_s or 0.0)
        elif error.code == grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after_s is not None:
            wait = error.retry_after_s
        else:
            return None
        return wait * (1.0 + self.jitter * self.random())


class Attempts:
    """The attempts of one call, within one deadline."""

    def __init__(
        self, policy: RetryPolicy, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._count = 0
        self._reason: PredictError | None = None
        self._deadline = None if timeout_s is None or math.isinf(timeout_s) else clock() + timeout_s

    def remaining_s(self) -> float | None:
        """Time left for the next attempt; None: no limit."""
        return None if self._deadline is None else self._deadline - self._clock()

    def wait_after(self, error: PredictError) -> float:
        """Returns the wait before the next attempt. Raises `error` if no attempt is left."""
        self._count += 1
        wait = self._policy.wait_s(error, self._count)
        remaining = self.remaining_s()
        if wait is None or (remaining is not None and wait >= remaining):
            raise error
        return wait

    def wait_until_ready(self, error: PredictError) -> float:
        """`wait_after`, but an attempt that was cut off by the deadline does not hide the reason of the one before."""
        if error.code != grpc.StatusCode.DEADLINE_EXCEEDED:
            self._reason = error
        return self.wait_after(self._reason or error)
