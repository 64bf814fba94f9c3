# SPDX-License-Identifier: Apache-2.0
"""Waits for what another process or thread does in its own time, and has no event for."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"the condition did not come true in {timeout_s:g} s"
        time.sleep(0.01)
