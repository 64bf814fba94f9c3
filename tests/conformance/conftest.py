# SPDX-License-Identifier: Apache-2.0
"""Real servers for real clients: the native front in plaintext and over TLS, and the Python front, whose HTTP/2 and
TLS are those of grpcio."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.certificates import Certificates
from tests.support.foreign_clients import ForeignClients
from tests.support.server import Server


@dataclass(frozen=True)
class Endpoint:
    """Where a client connects; `ca` is set when it must use TLS."""

    server: Server
    front: str
    target: str
    ca: Path | None

    @property
    def port(self) -> int:
        return int(self.target.rpartition(":")[2])

    def arguments(self) -> list[str]:
        """For clients that are programs of their own."""
        return [f"localhost:{self.port}", str(self.ca or "")]


@pytest.fixture(scope="session", params=["plaintext", "tls", "python"])
def endpoint(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Endpoint]:
    front = "python" if request.param == "python" else "native"
    if front == "native" and (problem := native_front_problem()):
        pytest.skip(problem)
    files = certificates.server_files()
    encrypted = request.param == "tls"
    tls = {"tls_certificate": files.certificate, "tls_key": files.key} if encrypted else {}
    with Server(front=front, **tls) as server:
        yield Endpoint(server, front, server.target, certificates.ca if encrypted else None)


@pytest.fixture(scope="session")
def foreign_clients() -> ForeignClients:
    return ForeignClients()
