"""Clients by other people, unmodified, in environments of their own."""

from __future__ import annotations

import shutil

import pytest

from tests.conformance.conftest import Endpoint
from tests.conformance.foreign_clients import ForeignClients


def test_tritonclient(endpoint: Endpoint, foreign_clients: ForeignClients) -> None:
    outcome = foreign_clients.run_triton(*endpoint.arguments())
    assert outcome == dict.fromkeys(outcome, "ok")
    assert len(outcome) == 11


def test_grpc_js(endpoint: Endpoint, foreign_clients: ForeignClients) -> None:
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed, and with it its gRPC client")
    outcome = foreign_clients.run_node(*endpoint.arguments())
    assert outcome == dict.fromkeys(outcome, "ok")
    assert len(outcome) == 13
