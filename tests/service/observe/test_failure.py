# SPDX-License-Identifier: Apache-2.0
"""A GPU that is lost to the process: health says so on both ports, so that an orchestrator replaces it."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from fused_mlp.kernels import failure
from fused_mlp.kernels.failure import report_failure
from fused_mlp.service.client import Client
from tests.support.puppet import PuppetService

REASON = "cuda:0 is lost: an illegal memory access was encountered"


@pytest.fixture
def puppet() -> Iterator[PuppetService]:
    with PuppetService() as running:
        yield running
    assert not failure._LISTENERS
    failure._REASONS.clear()


def get(puppet: PuppetService, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{puppet.service.metrics_port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_lost_device_fails_every_health_check(puppet: PuppetService) -> None:
    with Client(puppet.target) as client:
        assert (client.health(), client.health("digits")) == ("SERVING", "SERVING")
        assert get(puppet, "/healthz") == (200, "ok\n")
        report_failure(REASON)
        report_failure("what follows from it")
        puppet.wait_for(lambda: client.health() == "NOT_SERVING")
        assert client.health("digits") == "NOT_SERVING"
    assert get(puppet, "/healthz") == (503, f"failed: {REASON}\n")
    assert get(puppet, "/readyz") == (503, f"not ready: {REASON}\n")
