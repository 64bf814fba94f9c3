# SPDX-License-Identifier: Apache-2.0
"""Certificates that are replaced while the server runs: on SIGHUP, on a change of files, and when they are no good."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from fused_mlp.service.client import Client, PredictError, RetryPolicy, Tls
from tests.support.certificates import Certificates
from tests.support.fronts import both_fronts
from tests.support.server import Server, free_port
from tests.support.tls import Peer, serial_of
from tests.support.waiting import wait_until


class Files:
    """The files of one server, swapped as Kubernetes does it: a link to a folder is replaced."""

    def __init__(self, root: Path, certificates: Certificates) -> None:
        self._root, self._certificates = root, certificates
        self._made = 0
        self.current = root / "current"
        self.renew()

    def put(self, certificate: Path, key: Path) -> None:
        self._made += 1
        folder = self._root / str(self._made)
        folder.mkdir()
        shutil.copy(certificate, folder / "tls.crt")
        shutil.copy(key, folder / "tls.key")
        link = self._root / "next"
        link.symlink_to(folder)
        link.replace(self.current)

    def renew(self) -> str:
        """A new certificate, valid for a day more; returns its serial number."""
        certificate, key = self._certificates.sign_server(f"{self._root.name}-{self._made}", 2 + self._made)
        self.put(certificate, key)
        return serial_of(certificate)

    def settings(self) -> dict[str, object]:
        return {"tls_certificate": self.current / "tls.crt", "tls_key": self.current / "tls.key"}


@pytest.fixture
def files(tmp_path: Path, certificates: Certificates) -> Files:
    return Files(tmp_path, certificates)


@pytest.fixture
def server(front: str, files: Files) -> Iterator[Server]:
    with Server(front=front, admin_port=free_port(), **files.settings()) as running:
        yield running


@pytest.fixture
def peer(certificates: Certificates) -> Peer:
    return Peer(certificates.ca)


def reloads(server: Server, result: str, files: str = "tls") -> float:
    return server.metric("fused_mlp_reloads_total", files=files, result=result)


def admin_target(server: Server) -> str:
    return server._find(r"admin +(\S+)")


@both_fronts
def test_a_changed_certificate_is_served_to_new_connections_and_old_ones_go_on(
    server: Server, files: Files, peer: Peer, certificates: Certificates
) -> None:
    with Client(server.target, tls=Tls(root_ca=certificates.ca)) as client:
        client.models()
        renewed = files.renew()
        wait_until(lambda: reloads(server, "ok") == 1)
        assert peer.serial(server.target) == renewed
        assert peer.serial(admin_target(server)) == renewed
        client.models()
    assert server.log().count("tls: read again from") == 1


def test_sighup_reads_them_at_once(server: Server, files: Files, peer: Peer) -> None:
    before = peer.serial(server.target)
    server.signal(signal.SIGHUP)
    wait_until(lambda: reloads(server, "ok") == 1)
    assert peer.serial(server.target) == before
    renewed = files.renew()
    server.signal(signal.SIGHUP)
    wait_until(lambda: peer.serial(server.target) == renewed)


def test_new_connections_during_reloads_all_succeed(
    server: Server, files: Files, certificates: Certificates
) -> None:
    """Each call over a connection of its own, as two certificates are swapped and SIGHUP comes again and again."""
    tls = Tls(root_ca=certificates.ca)
    stopped = threading.Event()

    def connect_until_stopped() -> int:
        connections = 0
        while not stopped.is_set():
            with Client(server.target, tls=tls, retry=RetryPolicy(attempts=1)) as client:
                client.models()
            connections += 1
        return connections

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(connect_until_stopped) for _ in range(3)]
        for done in range(1, 21):
            if done % 5 == 0:
                files.renew()
            server.signal(signal.SIGHUP)
            wait_until(lambda done=done: reloads(server, "ok") >= done)
        stopped.set()
        assert all(each.result() for each in running)
    assert reloads(server, "failed") == 0


@both_fronts
@pytest.mark.parametrize("broken", ["another key", "no certificate", "no file"])
def test_files_that_cannot_be_used_leave_the_old_certificate(
    broken: str, server: Server, files: Files, peer: Peer, certificates: Certificates, tmp_path: Path
) -> None:
    before = peer.serial(server.target)
    certificate, key = certificates.sign_server("broken")
    if broken == "another key":
        files.put(certificate, certificates.client_key)
    elif broken == "no certificate":
        (tmp_path / "text").write_text("none")
        files.put(tmp_path / "text", key)
    else:
        (files.current / "tls.key").unlink()
    wait_until(lambda: reloads(server, "failed") == 1)
    assert peer.serial(server.target) == before
    assert peer.serial(admin_target(server)) == before
    assert server.log().count("tls: cannot use the new files, the old ones stay in use: ") == 1
    renewed = files.renew()
    wait_until(lambda: reloads(server, "ok") == 1)
    assert peer.serial(server.target) == renewed
    assert reloads(server, "failed") == 1


def test_the_expiry_of_the_certificate_is_on_metrics(server: Server, files: Files) -> None:
    def expected() -> float:
        certificate = str(files.current / "tls.crt")
        command = ["openssl", "x509", "-in", certificate, "-noout", "-enddate", "-dateopt", "iso_8601"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return time.mktime(time.strptime(text, "notAfter=%Y-%m-%d %H:%M:%SZ\n")) - time.timezone

    def shown() -> float:
        return server.metric("fused_mlp_tls_certificate_expiry_timestamp_seconds")

    assert shown() == expected()
    before = shown()
    files.renew()
    wait_until(lambda: reloads(server, "ok") == 1)
    assert shown() == expected() > before


def test_a_session_is_not_resumed_after_a_reload(server: Server, peer: Peer) -> None:
    session, _ = peer.session(server.target)
    _, resumed = peer.session(server.target, session)
    assert resumed
    server.signal(signal.SIGHUP)
    wait_until(lambda: reloads(server, "ok") == 1)
    _, resumed = peer.session(server.target, session)
    assert not resumed


@both_fronts
def test_a_replaced_client_ca_counts_for_new_connections(
    front: str, certificates: Certificates, tmp_path: Path
) -> None:
    own = certificates.server_files()
    client_ca = tmp_path / "client-ca.pem"
    shutil.copy(certificates.ca, client_ca)
    settings = {"tls_certificate": own.certificate, "tls_key": own.key, "tls_client_ca": client_ca}
    tls = Tls(root_ca=certificates.ca, cert=certificates.client, key=certificates.client_key)
    stranger = Certificates(tmp_path)
    with Server(front=front, **settings) as server:
        with Client(server.target, tls=tls) as client:
            client.models()
        shutil.copy(stranger.ca, client_ca)
        wait_until(lambda: reloads(server, "ok") == 1)
        with Client(server.target, tls=tls) as client, pytest.raises(PredictError) as refused:
            client.models()
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE
        tls = Tls(root_ca=certificates.ca, cert=stranger.client, key=stranger.client_key)
        with Client(server.target, tls=tls) as client:
            client.models()
