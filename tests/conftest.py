# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the whole suite."""

from __future__ import annotations

import concurrent.futures.thread
import datetime
import faulthandler
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from fused_mlp.service.client import Client
from tests.support.certificates import Certificates
from tests.support.server import Server

TESTS = Path(__file__).parent
pytest_plugins = ["tests.support.verdict"]
# Their tests start processes: servers, clusters of them, clients of other languages. So do modules that import Server.
PROCESSES = (
    "attack", "cluster", "conformance", "deploy", "docs", "e2e", "examples", "kserve", "packaging", "ray",
    "service/local",
)  # fmt: skip
# What needs software of others or minutes: their clients and models, Prometheus, collectors, stores, the schemas of
# Kubernetes, the blocks of the docs, benchmarks, an emulated GPU.
NIGHTLY = (
    "attack", "bench/test_cuda.py", "bench/test_kernels.py", "bench/test_plots.py", "bench/test_screenshots.py",
    "cluster", "conformance/test_examples.py", "conformance/test_foreign_clients.py", "conformance/test_load.py",
    "conformance/test_rest_clients.py", "conformance/test_rolling_restart.py", "deploy/test_envoy",
    "deploy/test_kubernetes.py", "docs/test_pages.py", "e2e/test_alerts.py", "e2e/test_dashboard.py",
    "e2e/test_otel_collector.py", "e2e/test_stores.py", "examples", "kernels/cuda/test_check.py",
    "kernels/cuda/test_example.py", "kernels/cuda/test_executed.py", "kernels/cuda/test_gpu.py",
    "kernels/cuda/test_interpreter.py", "kernels/cuda/test_warming.py", "kernels/profile/test_compile.py",
    "kernels/ptx/test_defects.py", "kernels/ptx/test_nvcc.py", "kserve", "models/zoo", "packaging", "ray",
    "service/stores/test_clouds.py",
)  # fmt: skip
MAX_QUARANTINED = 5
MAX_QUARANTINE = datetime.timedelta(days=30)

# The gate draws the same examples in each run, the night others each time.
hypothesis.settings.register_profile("gate", derandomize=True, deadline=None)
hypothesis.settings.register_profile("night", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cost", metavar="FILE", help="write the CPU time of each test file to FILE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    quarantined = set()
    for item in items:
        place = item.path.relative_to(TESTS).as_posix()
        if place.startswith(PROCESSES) or hasattr(item.getparent(pytest.Module).obj, "Server"):
            item.add_marker("process")
        if place.startswith("attack/"):
            item.add_marker("timing")
        if place.startswith(NIGHTLY) and item.get_closest_marker("gate") is None:
            item.add_marker("nightly")
        if not (item.get_closest_marker("process") or item.get_closest_marker("timing")):
            item.add_marker("unit")
        if (mark := item.get_closest_marker("quarantine")) is not None:
            reason, since = mark.kwargs["reason"], datetime.date.fromisoformat(mark.kwargs["since"])
            name = item.nodeid.partition("[")[0]
            quarantined.add(name)
            if datetime.date.today() - since > MAX_QUARANTINE:
                raise pytest.UsageError(
                    f"{name} is quarantined since {since}, longer than {MAX_QUARANTINE.days} days"
                )
            item.add_marker(pytest.mark.xfail(reason=f"quarantined since {since}: {reason}", strict=False))
    if len(quarantined) > MAX_QUARANTINED:
        raise pytest.UsageError(f"{len(quarantined)} tests are quarantined, at most {MAX_QUARANTINED} may be")
    # Long modules first, so that the workers of pytest-xdist end at the same time.
    items.sort(key=lambda item: item.get_closest_marker("unit") is not None)


@pytest.fixture(scope="session")
def front(request: pytest.FixtureRequest) -> str:
    """The native front; the tests that are marked `both_fronts` run over each (tests/support/fronts.py)."""
    from fused_mlp.service.fronts.selection import native_front_problem

    asked: str = getattr(request, "param", "native")
    if asked == "native" and (problem := native_front_problem()):
        pytest.skip(problem)
    return asked


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """One server for each front, started when a test first asks for it."""
    with ExitStack() as stack:
        yield functools.cache(lambda front: stack.enter_context(Server(front=front, allow_override=1)))


@pytest.fixture(scope="session")
def server(front: str, servers: Callable[[str], Server]) -> Server:
    """One server for all tests that leave it as they found it."""
    return servers(front)


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


@pytest.fixture(scope="session", autouse=True)
def _no_test_leaves_a_thread() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    # Workers of pools are told to end first, as the interpreter does: a library may keep an idle one.
    pools = threading.Thread(target=concurrent.futures.thread._python_exit, daemon=True)
    pools.start()
    pools.join(10)
    left = [each.name for each in set(threading.enumerate()) - before if not each.daemon]
    if left:
        faulthandler.dump_traceback(sys.__stderr__)
    assert left == [], "threads that no test ended"


def pytest_unconfigure(config: pytest.Config) -> None:
    """A thread that a test left would keep the process from ending; xdist ends its workers itself."""
    left = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    if left and not hasattr(config, "workerinput"):
        sys.stdout.flush()
        os._exit(1)
