# SPDX-License-Identifier: Apache-2.0
"""One engine in a process of its own: reads commands as JSON lines on stdin, answers on stdout.
So that no engine meets another's thread pool, allocator or environment."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from bench.kernels.engines import ENGINES, Call, last_row
from bench.kernels.shapes import ALL, build


def time_call(call: Callable[[], Any], budget_s: float) -> dict[str, float]:
    """Seconds per call, best and median over samples of at least 50 us, for about the budget."""
    clock = time.perf_counter
    start = clock()
    call()
    once = clock() - start
    inner = max(1, int(50e-6 / max(once, 1e-7)))
    samples = []
    end = clock() + budget_s
    while True:
        start = clock()
        for _ in range(inner):
            call()
        stop = clock()
        samples.append((stop - start) / inner)
        if stop >= end:
            return {"best": min(samples), "median": statistics.median(samples)}


def set_priority(realtime: bool) -> None:
    """Sets all threads of this process, including those that libraries started."""
    policy, priority = (os.SCHED_FIFO, 10) if realtime else (os.SCHED_OTHER, 0)
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def serve(engine: str, threads: int, replies: TextIO) -> None:
    call: Call | None = None
    rows: dict[int, Callable[[], Any]] = {}
    shape = ""
    for line in sys.stdin:
        command = json.loads(line)
        reply: dict[str, Any] = {}
        if command["do"] == "load":
            shape = command["shape"]
            rows.clear()
            call = ENGINES[engine](build(shape), threads)
        elif command["do"] == "bind":
            # Twice: whatever compiles or allocates at the first call of a batch size does it now.
            assert call is not None
            batch = command["batch"]
            generator = np.random.default_rng(
                (batch, 2)
            )  # no seed of the weights: rows would equal some of them
            x = generator.standard_normal((batch, ALL[shape].in_features), dtype=np.float32)
            rows[batch] = call(x)
            rows[batch]()
            reply["sample"] = last_row(rows[batch]())
        else:
            if command["realtime"]:
                set_priority(True)
            reply = time_call(rows[command["batch"]], command["budget_s"])
            if command["realtime"]:
                set_priority(False)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main() -> None:
    engine, threads = sys.argv[1], int(sys.argv[2])
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    # Libraries print to stdout; replies go to the original one, everything else to stderr.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(engine, threads, replies)


if __name__ == "__main__":
    main()
