# SPDX-License-Identifier: Apache-2.0
"""Plain HTTP/2 behaviour, as curl and nghttp see it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conformance.conftest import Endpoint
from tests.support.peer import PREDICT, framed, good_request

GRPC_HEADERS = ("content-type: application/grpc", "te: trailers")


@pytest.fixture
def body(tmp_path: Path) -> Path:
    file = tmp_path / "request"
    file.write_bytes(framed(good_request()))
    return file


def url(endpoint: Endpoint, path: str = PREDICT) -> str:
    return f"{'https' if endpoint.ca else 'http'}://localhost:{endpoint.port}{path}"


def curl(endpoint: Endpoint, *arguments: str, path: str = PREDICT) -> subprocess.CompletedProcess[str]:
    trust = ["--cacert", str(endpoint.ca)] if endpoint.ca else []
    version = "--http2" if endpoint.ca else "--http2-prior-knowledge"
    command = [
        "curl",
        "--silent",
        "--include",
        "--max-time",
        "20",
        version,
        *trust,
        *arguments,
        url(endpoint, path),
    ]
    return subprocess.run(command, capture_output=True, encoding="latin-1", timeout=30, check=False)


def headers_of(*names: str) -> list[str]:
    return [part for name in names for part in ("--header", name)]


def test_curl_predicts(endpoint: Endpoint, body: Path) -> None:
    answer = curl(endpoint, *headers_of(*GRPC_HEADERS), "--data-binary", f"@{body}")
    assert answer.stdout.startswith("HTTP/2 200")
    assert "content-type: application/grpc" in answer.stdout
    assert "grpc-status: 0" in answer.stdout


def test_curl_with_the_wrong_content_type(endpoint: Endpoint, body: Path) -> None:
    answer = curl(
        endpoint, *headers_of("content-type: application/json", "te: trailers"), "--data-binary", f"@{body}"
    )
    if endpoint.front == "native":
        assert answer.stdout.startswith("HTTP/2 415")
        assert "grpc-status: 0" not in answer.stdout
    else:  # grpcio's server does not look at it, or says UNKNOWN: its choice, not ours
        assert answer.stdout.startswith("HTTP/2 200")


def test_curl_get(endpoint: Endpoint) -> None:
    answer = curl(endpoint, *headers_of(*GRPC_HEADERS))
    assert "grpc-status: 0" not in answer.stdout
    if endpoint.front == "native":
        assert answer.stdout.startswith("HTTP/2 405")


def test_curl_unknown_path(endpoint: Endpoint, body: Path) -> None:
    answer = curl(
        endpoint, *headers_of(*GRPC_HEADERS), "--data-binary", f"@{body}", path="/nonesuch.Service/Method"
    )
    # grpcio may reset the stream before curl has sent its body, and curl then prints nothing.
    if endpoint.front == "native" or answer.stdout:
        assert answer.stdout.startswith("HTTP/2 200")
        assert "grpc-status: 12" in answer.stdout


def test_curl_http1_is_turned_away(endpoint: Endpoint, body: Path) -> None:
    answer = curl(endpoint, "--http1.1", *headers_of(*GRPC_HEADERS), "--data-binary", f"@{body}")
    assert answer.returncode != 0
    assert "grpc-status: 0" not in answer.stdout


def test_nghttp_sends_several_requests_over_one_connection(endpoint: Endpoint, body: Path) -> None:
    if shutil.which("nghttp") is None:
        pytest.skip("nghttp is not installed (Debian: nghttp2-client)")
    command = ["nghttp", "--verbose", "--multiply=5", f"--data={body}", "--no-verify-peer", "--timeout=20"]
    command += [f"--header={header}" for header in GRPC_HEADERS] + ["--header=:method: POST", url(endpoint)]
    log = subprocess.run(command, capture_output=True, encoding="latin-1", timeout=30, check=False).stdout
    assert len(re.findall(r"recv \(stream_id=\d+\) grpc-status: 0", log)) == 5
    assert len(re.findall(r"recv \(stream_id=\d+\) :status: 200", log)) == 5
    assert "recv SETTINGS frame" in log
    assert "recv RST_STREAM" not in log
