"""Ending a child process: SIGTERM first, then SIGKILL."""

from __future__ import annotations

import subprocess
from typing import Any


def end(process: subprocess.Popen[Any], patience_s: float = 20) -> None:
    """SIGKILL follows if the process is still running after `patience_s`. Returns when it has ended."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
