# SPDX-License-Identifier: Apache-2.0
"""The REST port with HTTP clients by other people, unmodified: tritonclient.http, requests, httpx, perf_analyzer; in
plaintext and over TLS."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path

import pytest

from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.certificates import Certificates
from tests.support.foreign_clients import ForeignClients, run_perf_analyzer
from tests.support.rest import rest_port
from tests.support.server import Server

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)


@pytest.fixture(scope="module")
def plain() -> Iterator[int]:
    with Server(front="native", rest_port=0) as server:
        yield rest_port(server)


@pytest.fixture(scope="module")
def over_tls(certificates: Certificates) -> Iterator[int]:
    files = certificates.server_files()
    with Server(front="native", rest_port=0, tls_certificate=files.certificate, tls_key=files.key) as server:
        yield rest_port(server)


def test_python_clients(plain: int, foreign_clients: ForeignClients) -> None:
    outcome = foreign_clients.run_http(f"localhost:{plain}", "")
    assert outcome == dict.fromkeys(outcome, "ok")
    assert len(outcome) == 13


def test_python_clients_over_tls(
    over_tls: int, certificates: Certificates, foreign_clients: ForeignClients
) -> None:
    outcome = foreign_clients.run_http(f"localhost:{over_tls}", str(certificates.ca))
    assert outcome == dict.fromkeys(outcome, "ok")
    assert len(outcome) == 13


@pytest.mark.parametrize(
    ("option", "version"), [("--http1.1", "1.1"), ("--http2", "2"), ("--no-alpn", "1.1")]
)
def test_alpn_chooses_the_protocol(
    over_tls: int, certificates: Certificates, option: str, version: str
) -> None:
    done = subprocess.run(
        ["curl", "-sS", "--cacert", str(certificates.ca), option, "-o", "/dev/null",
         "-w", "%{http_version} %{http_code}", f"https://localhost:{over_tls}/v2"],
        capture_output=True, text=True, check=True, timeout=20,
    )  # fmt: skip
    assert done.stdout == f"{version} 200"


def test_client_certificates_as_for_grpc(certificates: Certificates) -> None:
    files = certificates.server_files()
    settings: dict[str, Path] = {
        "tls_certificate": files.certificate,
        "tls_key": files.key,
        "tls_client_ca": certificates.ca,
    }
    with Server(front="native", rest_port=0, **settings) as server:
        curl = ["curl", "-sS", "--cacert", str(certificates.ca), f"https://localhost:{rest_port(server)}/v2"]
        shown = ["--cert", str(certificates.client), "--key", str(certificates.client_key)]
        assert subprocess.run([*curl, *shown], capture_output=True, check=True, timeout=20).stdout
        refused = subprocess.run(curl, capture_output=True, check=False, timeout=20)
        assert (refused.returncode != 0, refused.stdout) == (True, b"")


def test_perf_analyzer(plain: int) -> None:
    if find_library("b64") is None:
        pytest.skip("libb64, which perf_analyzer is linked to, is not installed")
    done = run_perf_analyzer(
        "-m", "digits", "-i", "http", "-u", f"127.0.0.1:{plain}", "--concurrency-range", "1:2",
        "--measurement-interval", "300", "--stability-percentage", "999", "--max-trials", "3",
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    swept = re.findall(r"^Concurrency: (\d), throughput: ([\d.]+)", done.stdout, re.MULTILINE)
    assert [level for level, _ in swept] == ["1", "2"], done.stdout
    assert all(float(throughput) > 0 for _, throughput in swept)
