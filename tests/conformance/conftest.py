# SPDX-License-Identifier: Apache-2.0
"""Real servers for real clients: both fronts, in plaintext and over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.certificates import Certificates
from tests.conformance.foreign_clients import ForeignClients
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


@pytest.fixture(scope="session", params=[False, True], ids=["plaintext", "tls"])
def endpoint(request: pytest.FixtureRequest, front: str, certificates: Certificates) -> Iterator[Endpoint]:
    files = certificates.server_files()
    tls = {"tls_certificate": files.certificate, "tls_key": files.key} if request.param else {}
    with Server(front=front, **tls) as server:
        yield Endpoint(server, front, server.target, certificates.ca if request.param else None)


@pytest.fixture(scope="session")
def foreign_clients() -> ForeignClients:
    return ForeignClients()
