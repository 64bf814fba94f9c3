# SPDX-License-Identifier: Apache-2.0
"""models(), model(), health(), ready() and TLS."""

from __future__ import annotations

import threading

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from fused_mlp.service.client import PredictError, RetryPolicy, Tls


def test_models_are_described(connect, scripted):
    tiny, broken = connect(scripted.target).models()
    assert (tiny.name, tiny.default_version) == ("tiny", 7)
    version = tiny.version()
    assert version.widths == (4, 5, 3)
    assert version.activations == ("relu", "softmax")
    assert version.labels[:2] == ("ant", "bee")
    assert version.example == (1, 2, 3, 4)
    assert version.variant == "fused"
    assert [(kernel.variant, kernel.backend) for kernel in version.kernels] == [
        ("fused", "cpu"),
        ("unfused", "eager"),
    ]
    assert broken.version() is None  # nothing to answer with by default
    assert "missing" in broken.version(1).reason
    assert broken.version(1).variant is None


def test_one_model_by_name(connect, scripted):
    client = connect(scripted.target)
    assert client.model("tiny").version(7).parameters == 43
    assert client.model("tiny").version(8) is None
    with pytest.raises(PredictError, match="NOT_FOUND: model 'nope' is not served here"):
        client.model("nope")


def test_health_of_server_and_model(connect, scripted):
    client = connect(scripted.target)
    assert client.health() == "SERVING"
    assert client.health("tiny") == "SERVING"
    scripted.statuses.set("tiny", HealthCheckResponse.NOT_SERVING)
    assert client.health("tiny") == "NOT_SERVING"
    with pytest.raises(PredictError) as caught:
        client.health("nope")
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_ready_waits_for_serving(connect, scripted):
    scripted.statuses.set("tiny", HealthCheckResponse.NOT_SERVING)
    client = connect(scripted.target)
    client.ready(5)
    turn = threading.Timer(0.1, scripted.statuses.set, ("tiny", HealthCheckResponse.SERVING))
    turn.start()
    client.ready(10, model="tiny")
    turn.join()


def test_ready_says_why_it_gave_up(connect, scripted):
    scripted.statuses.set("tiny", HealthCheckResponse.NOT_SERVING)
    with pytest.raises(PredictError, match=r"UNAVAILABLE: model 'tiny' at .* is NOT_SERVING"):
        connect(scripted.target).ready(1, model="tiny")
    with pytest.raises(PredictError, match=r"no answer from 127\.0\.0\.1:1: Connection refused"):
        connect("127.0.0.1:1").ready(1)


def test_tls_with_own_root_and_client_certificate(connect, scripted, certificate, secure_target):
    cert, key = certificate
    tls = Tls(root_ca=cert, cert=cert, key=key, server_name="models.test")
    assert connect(secure_target, tls=tls).predict("tiny", [1, 2, 3, 4]).output.shape == (3,)
    stranger = connect(secure_target, tls=Tls(root_ca=cert), retry=RetryPolicy(attempts=1))
    with pytest.raises(PredictError, match="UNAVAILABLE"):  # another name, and no certificate of its own
        stranger.predict("tiny", [1, 2, 3, 4])


def test_a_certificate_without_its_key_is_refused():
    with pytest.raises(ValueError, match="give both cert and key"):
        Tls(cert="cert.pem")
