# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the whole suite."""

from __future__ import annotations

import concurrent.futures.thread
import faulthandler
import os
import sys
import threading
from collections.abc import Iterator

import hypothesis  # noqa: F401 - its plugin imports it at the end, which warns after the gc.freeze() of a service
import numpy as np
import pytest

from fused_mlp.service.client import Client
from tests.conformance.certificates import Certificates
from tests.support.server import Server


@pytest.fixture(scope="session", params=["python", "native"])
def front(request: pytest.FixtureRequest) -> str:
    """Every test that asks for a server runs over both fronts."""
    from fused_mlp.service.fronts.selection import native_front_problem

    if request.param == "native" and (problem := native_front_problem()):
        pytest.skip(problem)
    return request.param


@pytest.fixture(scope="session")
def server(front: str) -> Iterator[Server]:
    """One server for all tests that leave it as they found it."""
    with Server(front=front, allow_override=1) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Client]:
    with Client(server.target) as connected:
        yield connected


@pytest.fixture(scope="session")
def example(client: Client) -> np.ndarray:
    """The example row of the demo model: (64,) float32."""
    return np.asarray(client.model("digits").versions[-1].example, np.float32)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def pytest_unconfigure() -> None:
    """A thread that a test forgot would keep the process from ending, without a word and for ever. Workers of pools are
    told to end first, as the interpreter does: a library may keep an idle one."""
    pools = threading.Thread(target=concurrent.futures.thread._python_exit, daemon=True)
    pools.start()
    pools.join(10)
    forgotten = [
        thread.name
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.current_thread()
    ]
    if forgotten:
        print(f"threads that no test ended: {', '.join(forgotten)}", file=sys.stderr)
        faulthandler.dump_traceback(sys.stderr)
        sys.stderr.flush()
        os._exit(1)
