"""Other work on the machine: a process that uses a share of one core, in short bursts, on any core. Run as
`python -m bench.kernels.neighbour SHARE`; ends when its stdin does."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PERIODS_S = (0.001, 0.03)  # of a burst and the sleep after it: between these


@contextmanager
def neighbour(share: float) -> Iterator[None]:
    """While the context lasts. A share of 0 is none."""
    if share == 0:
        yield
        return
    command = [sys.executable, "-m", "bench.kernels.neighbour", str(share)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def work(share: float, stop: threading.Event) -> None:
    """Bursts are measured in processor time, so that the share is the same whoever else wants the core."""
    chance = random.Random(0)  # no fixed period, with which an engine could fall into step
    shortest, longest = map(math.log, PERIODS_S)
    while not stop.is_set():
        period = math.exp(chance.uniform(shortest, longest))
        end = time.thread_time() + share * period
        while time.thread_time() < end:
            sum(range(500))
        stop.wait((1 - share) * period)


if __name__ == "__main__":
    stop = threading.Event()
    threading.Thread(target=work, args=(float(sys.argv[1]), stop), daemon=True).start()
    sys.stdin.read()
    stop.set()
