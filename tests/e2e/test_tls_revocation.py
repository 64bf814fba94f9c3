# SPDX-License-Identifier: Apache-2.0
"""Client certificates that were revoked, and sessions of clients with certificates. Only the native front has these."""

from __future__ import annotations

import shutil
from pathlib import Path

import grpc
import pytest

from fused_mlp.service.client import Client, PredictError, Tls
from fused_mlp.service.fronts.selection import native_front_problem
from tests.e2e.test_tls_reload import reloads
from tests.support.certificates import Certificates
from tests.support.server import Server, run_to_exit
from tests.support.tls import Peer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(native_front_problem()), reason=native_front_problem())


@pytest.fixture
def authority(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def settings(authority: Certificates) -> dict[str, object]:
    own = authority.server_files(client_ca=True)
    return {"tls_certificate": own.certificate, "tls_key": own.key, "tls_client_ca": own.client_ca}


def test_a_revoked_certificate_is_refused_in_the_handshake(authority: Certificates, tmp_path: Path) -> None:
    crl = tmp_path / "crl.pem"
    other = authority.sign("other", "extendedKeyUsage=clientAuth")
    shutil.copy(authority.revocation_list(), crl)
    revoked = Tls(root_ca=authority.ca, cert=authority.client, key=authority.client_key)
    with Server(front="native", tls_crl=crl, **settings(authority)) as server:
        with Client(server.target, tls=revoked) as client:
            client.models()
        shutil.copy(authority.revocation_list(authority.client), crl)
        wait_until(lambda: reloads(server, "ok") == 1)
        with Client(server.target, tls=revoked) as client, pytest.raises(PredictError) as refused:
            client.models()
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE
        assert "the server ended the TLS handshake" in refused.value.message
        with Client(server.target, tls=Tls(root_ca=authority.ca, cert=other[0], key=other[1])) as client:
            client.models()
        crl.write_text("no list")
        wait_until(lambda: reloads(server, "failed") == 1)
        with Client(server.target, tls=revoked) as client, pytest.raises(PredictError):
            client.models()


def test_a_client_with_a_certificate_shows_it_each_time(authority: Certificates) -> None:
    peer = Peer(authority.ca, (authority.client, authority.client_key))
    with Server(front="native", **settings(authority)) as server:
        session, _ = peer.session(server.target)
        _, resumed = peer.session(server.target, session)
        assert not resumed


def test_a_list_that_nobody_would_check_is_refused(authority: Certificates) -> None:
    crl = authority.revocation_list()
    refused = run_to_exit(front="python", tls_crl=crl, **settings(authority))
    assert refused.returncode == 1
    assert "FUSED_MLP_TLS_CRL needs the native front" in refused.stderr
    own = authority.server_files()
    refused = run_to_exit(front="native", tls_crl=crl, tls_certificate=own.certificate, tls_key=own.key)
    assert refused.returncode == 1
    assert "FUSED_MLP_TLS_CRL requires FUSED_MLP_TLS_CLIENT_CA" in refused.stderr
