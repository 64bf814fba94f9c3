# SPDX-License-Identifier: Apache-2.0
"""Resident memory of a server after a burst of large unfused batches."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fused_mlp.models import save
from fused_mlp.service.client import Client, PredictError
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.server import Server, demo_copy
from tests.support.toy_front import resident_bytes

pytestmark = pytest.mark.timing  # how large the burst is, and how long it stays
ROWS = (4096, 700, 1500, 300)


def test_memory_of_a_burst_goes_back_to_the_system_within_a_minute(tmp_path: Path) -> None:
    root = demo_copy(tmp_path)
    save(make_mlp(make_spec((256, 1024, 1024, 512, 10))), root / "wide" / "1")
    x = np.ones((max(ROWS), 256), np.float32)
    with Server(model_repository=root, variant="unfused") as server:

        def burst(seed: int) -> None:
            with Client(server.target) as client:
                for turn in range(10):
                    with suppress(PredictError):  # refused while the queue is full
                        client.predict("wide", x[: ROWS[(seed + turn) % len(ROWS)]], timeout_s=60)

        with Client(server.target) as client:
            client.predict("wide", x[:16])
        idle = resident_bytes(server.process.pid)
        with ThreadPoolExecutor(8) as callers:
            list(callers.map(burst, range(8)))
        until = time.monotonic() + 60
        while (now := resident_bytes(server.process.pid)) > 1.2 * idle and time.monotonic() < until:
            time.sleep(0.5)  # it looks every ten seconds
        assert now <= 1.2 * idle, f"{idle >> 20} MiB when idle, {now >> 20} MiB a minute after the burst"
