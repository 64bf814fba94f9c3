# SPDX-License-Identifier: Apache-2.0
"""The wheel that `make wheel` left in dist/, installed as a server and as a client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.venvs import Venv
from tests.support.server import Server

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def wheel() -> Path:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    if not list((ROOT / "dist").glob("*.whl")):
        pytest.skip("there is no wheel in dist/: `make test-wheel` builds it and runs these tests")
    found = list((ROOT / "dist").glob(f"fused_mlp-*-{tag}-manylinux*.whl"))
    assert len(found) == 1, "expected one manylinux wheel for this Python in dist/: run `make test-wheel`"
    return found[0]


@pytest.fixture(scope="session")
def server_venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    venv = Venv(tmp_path_factory.mktemp("server"))
    venv.install(f"{wheel}[serve]")
    return venv


@pytest.fixture(scope="session")
def client_venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """The base install, with the newest of what it needs."""
    venv = Venv(tmp_path_factory.mktemp("client"))
    venv.install(str(wheel))
    return venv


@pytest.fixture(scope="session")
def installed_server(server_venv: Venv) -> Iterator[Server]:
    command = [str(server_venv.bin / "fused-mlp"), "serve"]
    with Server(command=command, cwd=server_venv.cwd, rest_port=0) as running:
        yield running
