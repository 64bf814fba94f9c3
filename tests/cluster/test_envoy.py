# SPDX-License-Identifier: Apache-2.0
"""The configuration in deploy/envoy as it is: TLS on both sides, gRPC-Web, and what is not retried."""

from __future__ import annotations

import http.client
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from deploy.cluster.envoy import Envoy
from deploy.cluster.replica import Place, Replica
from fused_mlp.service.client import Client, PredictError, Tls
from tests.cluster.conftest import start_envoy
from tests.support.certificates import Certificates
from tests.support.peer import PREDICT, good_request


@pytest.fixture(scope="module")
def tls_envoy(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    """TLS to its clients and to its one replica."""
    files, folder = certificates.server_files(), tmp_path_factory.mktemp("envoy")
    for source, name in (
        (files.certificate, "tls.pem"), (files.key, "tls.key"), (certificates.ca, "replicas-ca.pem")
    ):  # fmt: skip
        shutil.copy(source, folder / name)
    replica = Replica(Place(), {"tls_certificate": files.certificate, "tls_key": files.key})
    try:
        with start_envoy(folder, [replica], upstream_tls=True) as started:
            yield started
    finally:
        replica.stop()


def test_tls_on_both_sides(tls_envoy: Envoy, certificates: Certificates) -> None:
    target = f"localhost:{tls_envoy.targets['grpc-tls'].rpartition(':')[2]}"
    with Client(target, tls=Tls(certificates.ca)) as client:
        assert client.predict("digits", np.zeros(64, np.float32)).output.shape == (10,)


def test_grpc_web_over_http_1_from_a_page_of_an_allowed_origin(tls_envoy: Envoy) -> None:
    connection = http.client.HTTPConnection(tls_envoy.target, timeout=10)
    origin = {"Origin": "https://example.org"}
    message = good_request()
    headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1", **origin}
    connection.request("POST", PREDICT, b"\0" + struct.pack(">I", len(message)) + message, headers)
    answer = connection.getresponse()
    body = answer.read()
    (length,) = struct.unpack_from(">I", body, 1)
    assert answer.getheader("access-control-allow-origin") == origin["Origin"]
    trailers = body[5 + length :]
    assert trailers[0] == 0x80
    assert b"grpc-status:0" in trailers
    asked = {"Access-Control-Request-Method": "POST"}
    for page, allowed in ((origin["Origin"], True), ("https://elsewhere.org", False)):
        connection.request("OPTIONS", PREDICT, headers={"Origin": page, **asked})
        answer = connection.getresponse()
        answer.read()
        assert (answer.getheader("access-control-allow-origin") == page) is allowed
    connection.close()


def test_a_refused_call_is_not_tried_again(tls_envoy: Envoy) -> None:
    before = tls_envoy.calls()
    with Client(tls_envoy.target) as client, pytest.raises(PredictError, match="65"):
        client.predict("digits", np.zeros(65, np.float32))
    assert sum(tls_envoy.calls().values()) == sum(before.values()) + 1
    assert tls_envoy.stat("upstream_rq_retry") == 0


def test_without_a_replica_calls_fail_at_once(tmp_path: Path) -> None:
    with (
        start_envoy(tmp_path, []) as envoy,
        grpc.insecure_channel(envoy.target) as channel,
        pytest.raises(grpc.RpcError) as raised,
    ):
        channel.unary_unary(PREDICT)(good_request(), timeout=10)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
