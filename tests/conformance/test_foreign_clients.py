# SPDX-License-Identifier: Apache-2.0
"""Clients by other people, unmodified, in environments of their own."""

from __future__ import annotations

import re
import shutil
from ctypes.util import find_library
from pathlib import Path

import pytest

from tests.conformance.conftest import Endpoint
from tests.support.foreign_clients import ForeignClients, run_perf_analyzer
from tests.support.programs import save_programs
from tests.support.server import Server


def test_tritonclient(endpoint: Endpoint, foreign_clients: ForeignClients) -> None:
    outcome = foreign_clients.run_triton(*endpoint.arguments())
    assert outcome == dict.fromkeys(outcome, "ok")
    assert len(outcome) == 11


def test_tritonclient_with_several_outputs_and_shapes(
    front: str, foreign_clients: ForeignClients, tmp_path: Path
) -> None:
    with Server(front=front, model_repository=save_programs(tmp_path)) as server:
        outcome = foreign_clients.run_triton(server.target, program="triton_programs.py")
    assert outcome == dict.fromkeys(outcome, "ok")
    assert len(outcome) == 4


def test_grpc_js(endpoint: Endpoint, foreign_clients: ForeignClients) -> None:
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed, and with it its gRPC client")
    outcome = foreign_clients.run_node(*endpoint.arguments())
    assert outcome == dict.fromkeys(outcome, "ok")
    assert len(outcome) == 13


def test_perf_analyzer_completes_a_sweep(endpoint: Endpoint) -> None:
    if endpoint.ca:
        pytest.skip("what it measures is the same over TLS")
    if find_library("b64") is None:
        pytest.skip("libb64, which perf_analyzer is linked to, is not installed")
    done = run_perf_analyzer(
        "-m", "digits", "-i", "grpc", "-u", endpoint.target, "--concurrency-range", "1:4",
        "--measurement-interval", "300", "--stability-percentage", "999", "--max-trials", "5",
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    swept = re.findall(r"^Concurrency: (\d), throughput: ([\d.]+)", done.stdout, re.MULTILINE)
    assert [level for level, _ in swept] == ["1", "2", "3", "4"], done.stdout
    assert all(float(throughput) > 0 for _, throughput in swept)
    # What the server says about itself adds up: no phase is longer than the request.
    phases = re.findall(
        r"Avg request latency: (\d+) usec \(overhead (\d+) usec \+ queue (\d+) usec \+ compute input (\d+) usec"
        r" \+ compute infer (\d+) usec \+ compute output (\d+) usec\)",
        done.stdout,
    )
    assert len(phases) == 4, done.stdout
    for latency, *parts in (map(int, line) for line in phases):
        assert sum(parts) <= latency + len(parts)  # each is rounded
