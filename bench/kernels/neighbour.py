# SPDX-License-Identifier: Apache-2.0
"""Other work on the machine: a process that uses a share of one core, in bursts of random length, on any core. Run as
`python -m bench.kernels.neighbour SHARE LONGEST_BURST_S`; ends when its stdin does."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SHORTEST = 1 / 30  # of the longest burst


@contextmanager
def neighbour(share: float, longest_s: float) -> Iterator[None]:
    """While the context lasts. A share of 0 is none."""
    if share == 0:
        yield
        return
    command = [sys.executable, "-m", "bench.kernels.neighbour", str(share), str(longest_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def work(share: float, longest_s: float, stop: threading.Event) -> None:
    """Bursts are measured in processor time, so that other load on the core does not change the share."""
    chance = random.Random(0)  # no fixed period, with which an engine could fall into step
    while not stop.is_set():
        burst = longest_s * math.exp(chance.uniform(math.log(SHORTEST), 0))
        end = time.thread_time() + burst
        while time.thread_time() < end and not stop.is_set():
            sum(range(500))
        stop.wait((1 - share) / share * burst)


if __name__ == "__main__":
    stop = threading.Event()
    threading.Thread(target=work, args=(*map(float, sys.argv[1:]), stop), daemon=True).start()
    sys.stdin.read()
    stop.set()
