# SPDX-License-Identifier: Apache-2.0
"""Callers of the admin port, load and unload: callers that are listed, by certificate or token."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest

from fused_mlp.protos import open_inference_pb2 as pb
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import PredictError, Tls
from fused_mlp.service.client.admin import AdminClient
from tests.e2e.test_tls_reload import admin_target, reloads
from tests.support.certificates import Certificates
from tests.support.fronts import both_fronts
from tests.support.server import Server, demo_copy, free_port, run_to_exit
from tests.support.waiting import wait_until

TOKEN = "correct-horse-battery-staple"
SPIFFE = "spiffe://example.org/ns/prod/sa/deployer"


def digest(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def admin_callers(path: Path) -> str:
    return json.dumps({"admin": str(path)})


def load(
    target: str, metadata: Mapping[str, str] = {}, credentials: grpc.ChannelCredentials | None = None
) -> str:
    """The code that a load and an unload end with."""
    channel = grpc.secure_channel(target, credentials) if credentials else grpc.insecure_channel(target)
    codes = set()
    with channel:
        stub = Stub(channel, pb, "GRPCInferenceService")
        for call, request in (
            (stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(model_name="digits")),
            (stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name="digits")),
        ):
            try:
                call(request, timeout=30, metadata=tuple(metadata.items()))
                codes.add("OK")
            except grpc.RpcError as error:
                codes.add(error.code().name)
    (code,) = codes
    return code


def administer(target: str, metadata: Mapping[str, str] = {}, tls: Tls | None = None) -> str:
    """The code that reading and changing a policy, and a trace, end with."""
    codes = set()
    with AdminClient(target, tls=tls, metadata=metadata) as admin:
        for call in (admin.policies, lambda: admin.set_policy(split=0.0), lambda: admin.trace(0.01)):
            try:
                call()
                codes.add("OK")
            except PredictError as error:
                codes.add(error.code.name)
    (code,) = codes
    return code


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("callers") / "callers"
    path.write_text(f"# operators\n{digest(TOKEN)}  # the deployer\n\n{digest('another')}\n")
    return path


@pytest.fixture(scope="module")
def by_token(front: str, callers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = demo_copy(tmp_path_factory.mktemp("repository"))
    settings = {"admin_port": free_port(), "callers": admin_callers(callers), "allow_load": 1}
    with Server(front=front, model_repository=repository, **settings) as server:
        yield server


GUESSES = pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({}, "UNAUTHENTICATED"),
        (bearer(TOKEN), "OK"),
        ({"authorization": f"bearer {TOKEN}"}, "OK"),
        ({"x-api-key": TOKEN}, "OK"),
        (bearer("another"), "OK"),
        (bearer(TOKEN[:-1]), "UNAUTHENTICATED"),
        ({"authorization": "Bearer"}, "UNAUTHENTICATED"),
        (bearer(digest(TOKEN)), "UNAUTHENTICATED"),
        ({"authorization": TOKEN}, "UNAUTHENTICATED"),
        (
            {"certificate-names": "CN:ops", "certificate_names": "CN:ops", "x509_common_name": "ops"},
            "UNAUTHENTICATED",
        ),
    ],
    ids=str,
)


@both_fronts
@GUESSES
def test_tokens_open_the_admin_port_and_loads(by_token: Server, metadata: dict[str, str], code: str) -> None:
    assert administer(admin_target(by_token), metadata) == code
    assert load(by_token.target, metadata) == code


def test_refusals_are_counted_and_tokens_are_nowhere_to_be_seen(by_token: Server) -> None:
    before = by_token.metric("fused_mlp_admin_refused_total", code="UNAUTHENTICATED")
    assert load(by_token.target, bearer("guess-of-mine")) == "UNAUTHENTICATED"
    assert by_token.metric("fused_mlp_admin_refused_total", code="UNAUTHENTICATED") == before + 2
    assert load(by_token.target, bearer(TOKEN)) == "OK"
    log = by_token.log()
    assert "result=UNAUTHENTICATED" in log
    for text in (log, by_token.banner, by_token.get("/status.json")[1], by_token.get("/metrics")[1]):
        for secret in (TOKEN, "guess-of-mine", digest(TOKEN).removeprefix("sha256:")):
            assert secret not in text


def test_predictions_need_no_token(by_token: Server) -> None:
    command = [sys.executable, "-m", "fused_mlp.service.cli", "predict", "digits", "--example"]
    subprocess.run([*command, "--target", by_token.target], check=True, capture_output=True, timeout=60)


def test_the_command_line_sends_its_token(by_token: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fused_mlp.service.cli", "policy", "get"]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--target", admin_target(by_token), *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert run("--token-file", str(tmp_path / "token")).returncode == 0
    assert run().stderr.startswith("error: UNAUTHENTICATED: ")
    (tmp_path / "token").write_text("wrong\n")
    assert run("--token-file", str(tmp_path / "token")).stderr.startswith("error: UNAUTHENTICATED: ")
    (tmp_path / "token").write_text("two\nlines\n")
    refused = run("--token-file", str(tmp_path / "token")).stderr
    assert "expected a token, one line of ASCII" in refused
    assert "two" not in refused


def test_a_changed_list_counts_at_once(front: str, tmp_path: Path) -> None:
    callers = tmp_path / "callers"
    callers.write_text(digest(TOKEN))
    with Server(front=front, admin_port=free_port(), callers=admin_callers(callers)) as server:
        with AdminClient(admin_target(server), metadata=bearer(TOKEN)) as connected:
            connected.policies()
            callers.write_text(digest("new"))
            wait_until(lambda: reloads(server, "ok", "admin_callers") == 1)
            with pytest.raises(PredictError, match="UNAUTHENTICATED"):
                connected.policies()
        callers.write_text("new\n")  # not a digest: the list before it stays
        wait_until(lambda: reloads(server, "failed", "admin_callers") == 1)
        assert administer(admin_target(server), bearer("new")) == "OK"
        assert administer(admin_target(server)) == "UNAUTHENTICATED"


@pytest.mark.parametrize("listed", ["CN:test client", "DNS:ops.example.org", f"URI:{SPIFFE}"])
def test_a_listed_certificate_opens_them_and_any_other_of_the_authority_does_not(
    listed: str, front: str, certificates: Certificates, tmp_path: Path
) -> None:
    own = certificates.server_files(client_ca=True)
    names = "extendedKeyUsage=clientAuth\nsubjectAltName=DNS:ops.example.org,URI:" + SPIFFE
    known, stranger = (
        certificates.sign("client", names),
        certificates.sign("stranger", "subjectAltName=DNS:x"),
    )
    # A common name in the form of another kind of name must not count as one.
    (tmp_path / "callers").write_text(f"{listed}\nDNS:test stranger\nURI:test stranger\nCN:x\n")
    settings = {"tls_certificate": own.certificate, "tls_key": own.key, "tls_client_ca": own.client_ca}
    with Server(
        front=front,
        model_repository=demo_copy(tmp_path / "repository"),
        admin_port=free_port(),
        callers=admin_callers(tmp_path / "callers"),
        allow_load=1,
        **settings,
    ) as server:
        for (certificate, key), code in ((known, "OK"), (stranger, "PERMISSION_DENIED")):
            tls = Tls(root_ca=certificates.ca, cert=certificate, key=key)
            assert administer(admin_target(server), tls=tls) == code
            assert load(server.target, credentials=tls.credentials()) == code
            # What the peer claims is not what its certificate says.
            claimed = {"certificate_names": listed, "authorization": f"Bearer {listed}"}
            claims = "OK" if code == "OK" else "UNAUTHENTICATED"
            assert administer(admin_target(server), claimed, tls) == claims


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"admin_port": 1, "admin_host": "0.0.0.0"}, "other machines can reach the admin port there"),
        ({"allow_load": 1, "host": "0.0.0.0"}, "other machines can reach 0.0.0.0"),
    ],
)
def test_what_other_machines_can_reach_needs_callers(settings: dict[str, object], text: str) -> None:
    refused = run_to_exit(**settings)
    assert refused.returncode == 1
    assert text in refused.stderr
    assert "in FUSED_MLP_CALLERS" in refused.stderr


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("", "expected at least one caller, got none"),
        ("CN:ops", "line 1: a name in a certificate, but clients are not asked for one here"),
        (f"{digest('a')}\nhunter2", "line 2: expected sha256:<64 hexadecimal digits in lower case>"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_without_its_contents(
    lines: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "callers").write_text(lines)
    refused = run_to_exit(callers=admin_callers(tmp_path / "callers"))
    assert refused.returncode == 1
    assert text in refused.stderr
    assert "hunter2" not in refused.stderr
