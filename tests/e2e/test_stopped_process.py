# SPDX-License-Identifier: Apache-2.0
"""A server whose process was stopped (SIGSTOP, a frozen container) says so, and answers as before."""

from __future__ import annotations

import signal
import time

import numpy as np

from fused_mlp.service.client import Client
from fused_mlp.service.observe.utilisation import LATE_S, SAMPLE_EVERY_S
from tests.support.server import Server
from tests.support.waiting import wait_until


def test_a_long_stop_is_logged_and_loses_nothing(example: np.ndarray) -> None:
    with Server() as server, Client(server.target) as client:
        before = client.predict("digits", example).output
        server.pause()
        continued_at = (
            time.monotonic() + LATE_S + 2 * SAMPLE_EVERY_S
        )  # how long the stop lasts is what is tested
        wait_until(lambda: time.monotonic() >= continued_at)
        assert "did not run for" not in server.log()
        server.signal(signal.SIGCONT)
        wait_until(lambda: "this process did not run for" in server.log())
        np.testing.assert_array_equal(client.predict("digits", example).output, before)
