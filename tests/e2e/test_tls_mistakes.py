# SPDX-License-Identifier: Apache-2.0
"""A client and a server that disagree about TLS: one line that says what is probably wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.fronts import both_fronts
from tests.support.server import Server

MUTUAL = "the server ended the TLS handshake: it may want a client certificate, or not trust the one it got"


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority that no server here knows."""
    return Certificates(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def plaintext(front: str) -> Iterator[Server]:
    with Server(front=front) as server:
        yield server


@pytest.fixture(scope="module")
def secure(front: str, certificates: Certificates) -> Iterator[Server]:
    files = certificates.server_files()
    with Server(front=front, tls_certificate=files.certificate, tls_key=files.key) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(front: str, certificates: Certificates) -> Iterator[Server]:
    files = certificates.server_files()
    settings = {"tls_certificate": files.certificate, "tls_key": files.key, "tls_client_ca": certificates.ca}
    with Server(front=front, **settings) as server:
        yield server


def failure(server: Server, command: str, *options: str | Path) -> str:
    """What a command says, without gRPC's own log lines."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fused_mlp.service.cli",
            command,
            "--target",
            server.target,
            *map(str, options),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return line.removeprefix(f"error: UNAVAILABLE: no connection to {server.target}: ")


COMMANDS = pytest.mark.parametrize("command", ["health", "models"])


@COMMANDS
def test_tls_to_a_plaintext_port(command: str, plaintext: Server, certificates: Certificates) -> None:
    expected = "the server speaks plaintext, not TLS: connect without TLS"
    assert failure(plaintext, command, "--tls-ca", certificates.ca) == expected


@COMMANDS
def test_plaintext_to_a_tls_port(command: str, secure: Server) -> None:
    assert failure(secure, command) == "the server closed the connection: it may want TLS"


@COMMANDS
def test_an_authority_that_is_not_trusted(command: str, secure: Server, stranger: Certificates) -> None:
    expected = "the server's certificate is not trusted: name the root CA that signed it"
    assert failure(secure, command, "--tls-ca", stranger.ca) == expected


@COMMANDS
def test_a_certificate_for_another_name(command: str, secure: Server, certificates: Certificates) -> None:
    expected = "the server's certificate is for another name: give the name that is in it"
    assert failure(secure, command, "--tls-ca", certificates.ca, "--tls-name", "other.example") == expected


@both_fronts
@COMMANDS
def test_no_client_certificate(command: str, mutual: Server, certificates: Certificates) -> None:
    assert failure(mutual, command, "--tls-ca", certificates.ca) == MUTUAL


@COMMANDS
def test_a_client_certificate_that_is_not_trusted(
    command: str, mutual: Server, certificates: Certificates, stranger: Certificates
) -> None:
    own = ("--tls-cert", stranger.client, "--tls-key", stranger.client_key)
    assert failure(mutual, command, "--tls-ca", certificates.ca, *own) == MUTUAL
