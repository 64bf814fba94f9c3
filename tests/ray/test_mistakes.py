# SPDX-License-Identifier: Apache-2.0
"""What a person gets to read who has made a mistake."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.ray.cluster import Nodes
from tests.support.server import free_port


def test_no_cluster_at_the_address() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fused_mlp.service.cli",
            "ray",
            "status",
            "--address",
            f"127.0.0.2:{free_port()}",
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: no Ray cluster at 127.0.0.2:"), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "down", "rollout"])
def test_no_fleet_of_that_name(nodes: Nodes, command: str) -> None:
    done = nodes.run(command, "--name", "other")
    assert done.returncode == 1
    assert done.stderr == "error: there is no fleet 'other'; `fused-mlp ray up` starts one\n"


def test_a_fault_before_a_server_starts_is_told(nodes: Nodes) -> None:
    """No file can have that name, so there is no log."""
    done = nodes.run("up", "--name", "x" * 240)
    assert done.returncode == 1
    expected = "error: no replica started: a replica did not start: OSError(36, 'File name too long')\n"
    assert done.stderr == expected, done.stderr


def test_a_fleet_that_cannot_start_says_why_and_leaves_nothing(nodes: Nodes) -> None:
    done = nodes.run("up", "--name", "broken", "--repository", "/nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no replica started: the server did not start: "), done.stderr
    assert "/nowhere" in done.stderr
    assert "no fleet 'broken'" in nodes.run("status", "--name", "broken").stderr
