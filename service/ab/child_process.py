"""Ending a process that we started: asked first, then made to."""

from __future__ import annotations

import subprocess
from typing import Any


def end(process: subprocess.Popen[Any], patience_s: float = 20) -> None:
    """SIGTERM, and SIGKILL when that was not heeded in time. Returns when it is gone."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
