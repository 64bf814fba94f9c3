# SPDX-License-Identifier: Apache-2.0
"""Ending child processes: SIGTERM first, then SIGKILL."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterable
from typing import Any


def end(process: subprocess.Popen[Any], patience_s: float = 20) -> None:
    """SIGKILL follows if the process is still running after `patience_s`. Returns when it has ended."""
    end_all([process], patience_s)


def end_all(processes: Iterable[subprocess.Popen[Any]], patience_s: float) -> None:
    """The same for several at once, which share the patience."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
        process.send_signal(signal.SIGCONT)  # a stopped process would not get SIGTERM
    deadline = time.monotonic() + patience_s
    for process in running:
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
