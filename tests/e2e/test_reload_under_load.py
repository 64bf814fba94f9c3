# SPDX-License-Identifier: Apache-2.0
"""Versions come, go, break and roll back under load: no request fails, and every one is counted."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.service.catalog.ledger import MAX_COUNTED
from fused_mlp.service.client import Client
from fused_mlp.service.client.admin import AdminClient
from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.peer import PREDICT, framed
from tests.support.server import Server, demo_copy, free_port
from tests.support.waiting import wait_until

CONNECTIONS, RATE, REQUESTS = 8, 20_000, 80_000
MAX_ROUNDS = MAX_COUNTED // 2 - 1  # the counters of versions before are not kept
X = np.random.default_rng(0).random((1, 64), np.float32)


def start_load(server: Server, folder: Path) -> subprocess.Popen[str]:
    body = folder / "request"
    request = fm.PredictRequest(model="digits", input=fm.Tensor(shape=X.shape, data=X.tobytes()))
    body.write_bytes(framed(request.SerializeToString()))
    command = [
        "h2load", "--threads=1", f"--clients={CONNECTIONS}", f"--rps={RATE // CONNECTIONS}",
        f"--requests={REQUESTS}", "--max-concurrent-streams=16", f"--data={body}",
        "--header=content-type: application/grpc", "--header=te: trailers", f"http://{server.target}{PREDICT}",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rate_of(load: subprocess.Popen[str]) -> float:
    """Requests per second, all of which were answered."""
    output = load.communicate()[0]
    assert f"{REQUESTS} done, {REQUESTS} succeeded, 0 failed" in output, output
    rate = re.search(r"finished in \S+, (\S+) req/s", output)
    assert rate, output
    return float(rate[1])


def churn(root: Path, client: Client, admin: AdminClient, running: Callable[[], bool]) -> int:
    """As long as the load runs. Returns how many rounds."""
    good = models.load(root / "digits" / "1")

    def states() -> dict[int, str]:
        return {v.version: v.state for v in client.model("digits").versions}

    newest = 1
    rounds = 0
    while running() and rounds < MAX_ROUNDS:
        new, broken = newest + 1, newest + 2  # the broken number is used again
        models.save(good, root / "digits" / str(new))
        wait_until(lambda: states().get(new) == "READY")  # noqa: B023 - called at once
        weights = root / ".draft" / "model.safetensors"
        models.save(good, weights.parent)
        weights.write_bytes(weights.read_bytes()[:-4])
        weights.parent.rename(root / "digits" / str(broken))
        assert admin.roll_back("digits").default_version == newest
        assert admin.pin("digits", 0).default_version == new
        wait_until(lambda: states().get(broken) == "UNAVAILABLE")  # noqa: B023
        shutil.rmtree(root / "digits" / str(newest))
        shutil.rmtree(root / "digits" / str(broken))
        wait_until(lambda: states().keys() == {new})  # noqa: B023
        newest, rounds = new, rounds + 1
    return rounds


@pytest.mark.timing
@pytest.mark.skipif(bool(native_front_problem()), reason=native_front_problem())
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_no_request_fails_while_versions_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the rate of the same load without changes, which is RATE unless the machine is busy with other tests."""
    root = demo_copy(tmp_path / "models")
    settings = {
        "reload": "poll:0.05",
        "reload_settle_s": 0.1,
        "admin_port": free_port(),
    }
    with (
        Server(front="native", model_repository=root, **settings) as server,
        Client(server.target) as client,
        AdminClient(f"127.0.0.1:{settings['admin_port']}") as admin,
    ):
        undisturbed = rate_of(start_load(server, tmp_path))
        load = start_load(server, tmp_path)
        rounds = churn(root, client, admin, lambda: load.poll() is None)
        rate = rate_of(load)
        with capsys.disabled():
            print(
                f" {rounds} rounds of new versions at {rate:,.0f} req/s, {undisturbed:,.0f} without ", end=""
            )
        assert rounds > 0
        assert server.metric("fused_mlp_requests_total", code="OK") == 2 * REQUESTS
        assert server.metric("fused_mlp_requests_total") == 2 * REQUESTS
        assert rate > undisturbed / 2
