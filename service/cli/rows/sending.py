# SPDX-License-Identifier: Apache-2.0
"""Sends rows to a server in parts, several at a time, and adds up the answers in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.cli.output.rendering import MAX_SHOWN_ROWS
from fused_mlp.service.client import Prediction
from fused_mlp.service.client.prediction import Timings
from fused_mlp.variant import Variant

# Keeps the server busy while the next part is read; well within its queue of 8192 rows.
IN_FLIGHT = 4


def predict_parts(
    send: Callable[[Any, int | None], Prediction], parts: Iterator[Any], version: int | None
) -> Iterator[Prediction]:
    """`send(part, version)` is called on threads. The version that answers the first part answers the others too: the
    outputs of a version loaded meanwhile must not be mixed in."""
    pool = ThreadPoolExecutor(IN_FLIGHT)
    pending: deque[Future[Prediction]] = deque()
    try:
        for part in parts:
            pending.append(pool.submit(send, part, version))
            if version is None or len(pending) == IN_FLIGHT:
                prediction = pending.popleft().result()
                version = prediction.version
                yield prediction
        while pending:
            yield pending.popleft().result()
    finally:
        # Calls in flight end when the client is closed.
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class Answers:
    """The answers so far. Keeps the first outputs, or all."""

    keep_all: bool
    rows: int = 0
    requests: int = 0
    _first: Prediction | None = None
    _kept: list[Mapping[str, NDArray[Any]]] = field(default_factory=list)
    _variants: dict[str, None] = field(default_factory=dict)  # an ordered set
    _strategies: dict[str, None] = field(default_factory=dict)
    _timings: Timings = field(default_factory=lambda: Timings(0.0, 0.0, 0))

    def add(self, prediction: Prediction) -> None:
        self._first = self._first or prediction
        if self.keep_all or self.rows < MAX_SHOWN_ROWS:
            self._kept.append(prediction.outputs)
        self.rows += len(prediction.output)
        self.requests += 1
        self._variants[prediction.variant] = None
        self._strategies[prediction.strategy] = None
        timings = prediction.timings
        self._timings = Timings(
            self._timings.queue_us + timings.queue_us,
            self._timings.compute_us + timings.compute_us,
            max(self._timings.batch_rows, timings.batch_rows),
        )

    def merged(self) -> Prediction:
        """All answers as one prediction, with the kept rows: times are sums, batch_rows is the largest."""
        assert self._first is not None
        outputs = {name: np.concatenate([kept[name] for kept in self._kept]) for name in self._first.outputs}
        return replace(
            self._first,
            output=next(iter(outputs.values())),
            outputs=outputs,
            variant=cast("Variant", ", ".join(self._variants)),
            strategy=", ".join(self._strategies),
            timings=self._timings,
        )
