# SPDX-License-Identifier: Apache-2.0
"""When a certificate expires, read without a library for X.509."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from fused_mlp.service.access.certificate import expiry


@pytest.mark.parametrize("days", [1, 20_000])  # until 2049 the time has two digits of the year, then four
@pytest.mark.parametrize("header", ["CERTIFICATE", "TRUSTED CERTIFICATE"])
def test_expiry_is_read(days: int, header: str, tmp_path: Path) -> None:
    made = tmp_path / "made.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=a",
        "-days",
        str(days),
    ]
    before = time.time()
    subprocess.run([*command, "-keyout", "/dev/null", "-out", made], check=True, capture_output=True)
    if header == "TRUSTED CERTIFICATE":
        command = ["openssl", "x509", "-in", str(made), "-trustout", "-out", str(made)]
        subprocess.run(command, check=True, capture_output=True)
    assert f"BEGIN {header}" in made.read_text()
    read = expiry(made)
    assert read is not None
    assert before - 1 <= read - days * 86400 <= time.time() + 1


def test_what_is_no_certificate_has_no_expiry(tmp_path: Path) -> None:
    for text in ("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        (tmp_path / "file").write_text(text)
        assert expiry(tmp_path / "file") is None
    assert expiry(tmp_path / "missing") is None
