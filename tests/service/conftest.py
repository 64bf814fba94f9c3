# SPDX-License-Identifier: Apache-2.0
"""A scripted server for the tests of the caller's side: the client and the command line."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fused_mlp.protos import fused_mlp_pb2
from tests.support.grpc_service import generic_handler
from tests.support.scripted_server import Failure, ScriptedServer


@pytest.fixture
def scripted():
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3), torch.nn.Softmax(-1)
    )
    servicer = ScriptedServer(module)
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers([generic_handler(fused_mlp_pb2, "Inference", servicer)])
    health_pb2_grpc.add_HealthServicer_to_server(servicer.statuses, server)
    servicer.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    servicer.statuses.set("tiny", health_pb2.HealthCheckResponse.SERVING)
    server.start()
    yield servicer
    servicer.release.set()
    server.stop(0).wait()


@pytest.fixture
def fail(scripted):
    """Make the next call fail: fail("UNAVAILABLE", details=..., retry_after_ms=...)."""

    def script(code: str, details: str = "as scripted", **trailers: int) -> None:
        pairs = tuple((key.replace("_", "-"), str(value)) for key, value in trailers.items())
        scripted.failures.append(Failure(grpc.StatusCode[code], details, pairs))

    return script


@pytest.fixture
def expected(scripted):
    """The model's own answer, computed here."""

    def run(x) -> np.ndarray:
        with torch.inference_mode():
            return scripted.module(torch.as_tensor(np.asarray(x, np.float32))).numpy()

    return run


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate for `models.test`: (certificate, key)."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", cert, "-days", "1", "-subj", "/CN=models.test",
         "-addext", "subjectAltName=DNS:models.test"],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.fixture
def secure_target(scripted, certificate):
    """The scripted server once more, on a port that asks for the certificate."""
    cert, key = (path.read_bytes() for path in certificate)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([generic_handler(fused_mlp_pb2, "Inference", scripted)])
    health_pb2_grpc.add_HealthServicer_to_server(scripted.statuses, server)
    credentials = grpc.ssl_server_credentials([(key, cert)], cert, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()
