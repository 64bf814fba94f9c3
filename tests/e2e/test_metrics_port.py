# SPDX-License-Identifier: Apache-2.0
"""The metrics port with TLS and tokens; probes need neither a token nor a name."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.support.wait import WebDriverWait

from tests.e2e.test_admin_callers import digest
from tests.support.browser import open_browser
from tests.support.certificates import Certificates
from tests.support.server import Server, run_to_exit
from tests.support.tls import Peer, serial_of
from tests.support.waiting import wait_until

TOKEN = "read-only-metrics"
PROTECTED = ("/", "/metrics", "/status.json", "/elsewhere")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics")


@pytest.fixture(scope="module")
def secure(folder: Path, certificates: Certificates) -> Iterator[Server]:
    """The certificates in files of its own, which a test replaces."""
    own = certificates.server_files(client_ca=True)
    for name, path in (("tls.crt", own.certificate), ("tls.key", own.key)):
        (folder / name).write_bytes(path.read_bytes())
    (folder / "callers").write_text(digest(TOKEN))
    with Server(
        metrics_tls=1,
        callers=json.dumps({"metrics": str(folder / "callers")}),
        tls_certificate=folder / "tls.crt",
        tls_key=folder / "tls.key",
        tls_client_ca=own.client_ca,  # of the gRPC port alone: Prometheus and probes show none
    ) as server:
        yield server


def status(server: Server, path: str, certificates: Certificates, authorization: str = "") -> int:
    request = urllib.request.Request(server.metrics_url + path)
    if authorization:
        request.add_header("Authorization", authorization)
    trusted = ssl.create_default_context(cafile=str(certificates.ca))
    try:
        with urllib.request.urlopen(request, timeout=10, context=trusted) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_banner_says_https(secure: Server) -> None:
    assert secure.metrics_url.startswith("https://127.0.0.1:")
    assert "  live     https://" in secure.banner


def test_pages_need_the_token_and_probes_do_not(secure: Server, certificates: Certificates) -> None:
    password = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()  # as a browser sends it
    for path in PROTECTED:
        found = 404 if path == "/elsewhere" else 200
        assert status(secure, path, certificates) == 401
        assert status(secure, path, certificates, "Bearer wrong") == 401
        assert status(secure, path, certificates, "Basic !") == 401
        assert status(secure, path, certificates, f"Bearer {TOKEN}") == found
        assert status(secure, path, certificates, f"Basic {password}") == found
    for path in ("/healthz", "/readyz"):
        assert status(secure, path, certificates) == 200


def test_a_new_certificate_is_served_here_too(
    secure: Server, certificates: Certificates, folder: Path
) -> None:
    certificate, key = certificates.sign_server("renewed")
    (folder / "tls.key").write_bytes(key.read_bytes())
    (folder / "tls.crt").write_bytes(certificate.read_bytes())
    peer = Peer(certificates.ca)
    target = secure.metrics_url.removeprefix("https://")
    wait_until(lambda: peer.serial(target) == serial_of(certificate))


def test_the_live_page_works_with_the_token_as_password(tmp_path: Path) -> None:
    (tmp_path / "callers").write_text(digest(TOKEN))
    with Server(callers=json.dumps({"metrics": str(tmp_path / "callers")})) as server:
        browser = open_browser()
        try:
            browser.get(server.metrics_url.replace("://", f"://anyone:{TOKEN}@") + "/metrics")
            browser.get(
                server.metrics_url + "/"
            )  # the browser has learned the password, as if it had been typed
            script = "return document.querySelector('#latency .empty')?.textContent"
            text = WebDriverWait(browser, 20, 0.1).until(lambda _: browser.execute_script(script))
        finally:
            browser.quit()
    assert "No traffic yet" in text


def test_tls_without_a_certificate_is_refused() -> None:
    refused = run_to_exit(metrics_tls=1)
    assert refused.returncode == 1
    assert "FUSED_MLP_METRICS_TLS is set without FUSED_MLP_TLS_CERTIFICATE and _TLS_KEY" in refused.stderr
