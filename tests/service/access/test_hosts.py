# SPDX-License-Identifier: Apache-2.0
"""Which Host headers are answered, and why no page can have one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fused_mlp.service.access.hosts import allowed_hosts, own_domains
from fused_mlp.service.settings.settings import Settings
from tests.support.rest import exchange, rest_port
from tests.support.server import Server

POD = "nameserver 10.96.0.10\nsearch ml.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8002", True),
        ("[::1]:8002", True),
        ("localhost:8002", True),
        ("fused-mlp:8000", True),
        ("FUSED-MLP.prod.svc.cluster.local.", True),
        ("host.docker.internal", True),
        ("models.example.org:443", True),
        ("a.b.example.net", True),
        ("example.net", False),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:127.0.0.1", False),
        ("local.evil.example", False),
        ("xmodels.example.org", False),
    ],
)
def test_addresses_private_names_and_named_ones_are_allowed(host: str, allowed: bool) -> None:
    settings = Settings(allowed_hosts="models.example.org, *.example.net")
    assert allowed_hosts(settings, safe=False).allows(host) == allowed
    assert allowed_hosts(settings, safe=True).allows(host)
    assert allowed_hosts(Settings(allowed_hosts="*"), safe=False).allows(host)


def test_domains_of_a_pod_are_its_own_without_the_bare_namespace(tmp_path: Path) -> None:
    """Else every page under .ml could call a server in a namespace of that name."""
    (tmp_path / "resolv.conf").write_text(POD)
    domains = own_domains(tmp_path / "resolv.conf")
    assert domains == ["ml.svc.cluster.local", "svc.cluster.local", "cluster.local"]
    assert own_domains(tmp_path / "absent") == []


def request(host: str, path: str, version: str = "1.1") -> bytes:
    lines = [f"GET {path} HTTP/{version}", *([f"Host: {host}"] if host else []), "Connection: close", "", ""]
    return "\r\n".join(lines).encode()


def status(port: int, data: bytes) -> int:
    return int(exchange(port, data).split(b" ", 2)[1])


def test_both_ports_refuse_a_name_that_a_page_could_have() -> None:
    with Server(rest_port=0) as server:
        rest, metrics = rest_port(server), int(server.metrics_url.rpartition(":")[2])
        for port, path in ((rest, "/v2/health/ready"), (metrics, "/metrics"), (metrics, "/readyz")):
            assert status(port, request("rebound.example", path)) == 403
            assert status(port, request("localhost", path)) == 200
            assert status(port, request(f"127.0.0.1:{port}", path)) == 200
        assert status(metrics, request("", "/readyz", "1.0")) == 200  # a probe without a Host
        assert b"FUSED_MLP_ALLOWED_HOSTS" in exchange(rest, request("rebound.example", "/v2"))


def test_a_port_with_tls_or_keys_answers_to_any_name(tmp_path: Path) -> None:
    """A page has neither a certificate with its name from us nor a key."""
    (tmp_path / "keys.json").write_text("{}")
    with Server(rest_port=0, keys=tmp_path / "keys.json", allowed_hosts="rebound.example") as server:
        assert status(rest_port(server), request("models.example.org", "/v2/health/ready")) == 200
        metrics = int(server.metrics_url.rpartition(":")[2])
        assert status(metrics, request("rebound.example", "/readyz")) == 200
        assert status(metrics, request("models.example.org", "/readyz")) == 403
