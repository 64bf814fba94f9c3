# SPDX-License-Identifier: Apache-2.0
"""The latency that a client of the small model sees: stock grpcio in a process of its own. It calls at fixed times,
whether or not the calls before have been answered, and a call counts from the time at which it was due: a server that
stalls for a second makes all calls of that second late, not one. Beside it an echo between two processes, which the
server has no part in, tells how late a busy machine makes everything.
`python -m tests.conformance.soak.probe TARGET FROM UNTIL` (monotonic seconds) prints one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from tests.attack.good_client import start_echo
from tests.support.peer import PREDICT, good_request

PERIOD_S = 0.01
DEADLINE_S = 60.0


def start(target: str, since: float, until: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.conformance.soak.probe", target, str(since), str(until)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class Latencies:
    """Of the calls that were due after the warm-up."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._values: list[float] = []

    def add(self, due: float) -> None:
        if due >= self._since:
            self._values.append(time.monotonic() - due)

    def quantile(self, share: float) -> float:
        return sorted(self._values)[int(share * len(self._values))]


def beats(until: float) -> Iterator[float]:
    """When calls are due, each at its time or as soon after it as can be."""
    due = time.monotonic()
    while due < until:
        time.sleep(max(0.0, due - time.monotonic()))
        yield due
        due += PERIOD_S


def call_echo(latencies: Latencies, until: float) -> None:
    echo = start_echo()
    for due in beats(until):
        echo()
        latencies.add(due)


def main(target: str, since: float, until: float) -> None:
    small, echo = Latencies(since), Latencies(since)
    machine = threading.Thread(target=call_echo, args=(echo, until))
    machine.start()
    calls: list[Any] = []
    with grpc.insecure_channel(target, [("grpc.enable_retries", 0)]) as channel:
        predict, message = channel.unary_unary(PREDICT), good_request()
        for due in beats(until):
            calls.append(predict.future(message, timeout=DEADLINE_S))
            calls[-1].add_done_callback(lambda _, due=due: small.add(due))
        failed = [f"{call.code().name}: {call.details()}" for call in calls if call.exception() is not None]
    machine.join()
    report = {"calls": len(calls), "problems": failed, "p50_s": small.quantile(0.5)}
    print(json.dumps(report | {"p99_s": small.quantile(0.99), "echo_p99_s": echo.quantile(0.99)}))


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
