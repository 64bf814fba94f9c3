# SPDX-License-Identifier: Apache-2.0
"""A server whose stderr nobody reads: it answers, is administered, and ends when told to."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from fused_mlp.service.client.admin import AdminClient
from tests.support.server import COMMAND, demo_copy, environment, free_port


def fill(descriptor: int) -> None:
    """So that the next byte that anyone writes waits for a reader."""
    os.set_blocking(descriptor, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(descriptor, b"x" * size)
        except BlockingIOError:
            pass
    os.set_blocking(descriptor, True)


def test_a_reader_of_stderr_that_stops_reading_stops_nothing_else(tmp_path: Path) -> None:
    read, write = os.pipe()
    admin_port, metrics_port = free_port(), free_port()
    settings = environment(
        admin_port=admin_port, metrics_port=metrics_port, model_repository=demo_copy(tmp_path)
    )
    with subprocess.Popen(COMMAND, env=settings, stdout=subprocess.PIPE, stderr=write, text=True) as server:
        try:
            assert server.stdout is not None
            assert any("gRPC" in line for line in server.stdout)
            fill(write)
            with AdminClient(f"127.0.0.1:{admin_port}") as admin:
                for split in (0.1, 0.2, 0.3):  # each is logged
                    assert admin.set_policy("digits", split=split)
            server.send_signal(signal.SIGTERM)
            assert server.wait(10) == 0
        finally:
            server.kill()
            os.close(read)
            os.close(write)
