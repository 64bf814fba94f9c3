# SPDX-License-Identifier: Apache-2.0
"""The ports of a server are its own from the start, and refuse connections until their servers listen."""

from __future__ import annotations

import socket

import pytest

from fused_mlp.service.fronts.ports import bind_ports, port_of
from fused_mlp.service.settings.settings import Settings, SettingsError
from tests.support.server import free_port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


@pytest.mark.parametrize("given", [True, False], ids=["a given port", "a free port"])
def test_a_port_refuses_until_its_server_listens_and_serves_then(given: bool) -> None:
    wanted = {name: free_port() if given else 0 for name in ("grpc_port", "rest_port")}
    ports = bind_ports(Settings(metrics_port=0, **wanted))  # type: ignore[arg-type]
    try:
        for bound in (ports.grpc, ports.rest):
            assert bound is not None
            port = port_of(bound)
            with pytest.raises(ConnectionRefusedError):
                connect(port)
            with socket.socket() as another, pytest.raises(OSError, match="in use"):
                another.bind(("127.0.0.1", port))
            bound.listen()
            with connect(port) as client:
                bound.setblocking(True)
                accepted, _ = bound.accept()
                with accepted:
                    client.sendall(b"hello")
                    assert accepted.recv(5) == b"hello"
    finally:
        ports.close()


def test_one_port_for_two_purposes_is_refused_and_all_are_released() -> None:
    first, second = free_port(), free_port()
    with pytest.raises(SettingsError, match=f"127.0.0.1:{second} for admin: Address already in use"):
        bind_ports(Settings(grpc_port=first, metrics_port=second, admin_port=second))
    for port in (first, second):
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_ports_that_are_off_are_not_bound() -> None:
    ports = bind_ports(Settings(grpc_port=0, metrics_port=0, rest_port="off"))
    try:
        assert (ports.rest, ports.admin, port_of(ports.admin)) == (None, None, 0)
    finally:
        ports.close()
