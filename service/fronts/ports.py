# SPDX-License-Identifier: Apache-2.0
"""Binds the ports of a server, all of them before anything slow is done, and hands each socket to the server behind it.
So a port that is taken is reported at once, and no other process can take one during the start."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass

from fused_mlp.service.settings.settings import Settings, SettingsError, join_address


@dataclass(frozen=True)
class Ports:
    """Bound sockets; None: the port is off. Those of gRPC and REST refuse connections until their server listens."""

    grpc: socket.socket
    metrics: socket.socket
    rest: socket.socket | None = None
    admin: socket.socket | None = None

    def close(self) -> None:
        """Closes the sockets that no server has taken over."""
        for each in (self.grpc, self.metrics, self.rest, self.admin):
            if each is not None:
                each.close()


def bind_ports(settings: Settings) -> Ports:
    """Raises SettingsError, with the port and the setting to change."""
    wanted: dict[str, tuple[str, int, str]] = {
        "grpc": (settings.host, settings.grpc_port, "FUSED_MLP_GRPC_PORT or FUSED_MLP_HOST"),
        "metrics": (settings.metrics_host, settings.metrics_port, "FUSED_MLP_METRICS_PORT or _HOST"),
    }
    if settings.rest_port != "off" and settings.front != "python":
        names = "FUSED_MLP_REST_PORT (off: none) or FUSED_MLP_HOST"
        wanted["rest"] = settings.host, settings.rest_port, names
    if settings.admin_port:
        wanted["admin"] = settings.admin_host, settings.admin_port, "FUSED_MLP_ADMIN_PORT or _HOST"
    bound: dict[str, socket.socket] = {}
    with ExitStack() as on_error:
        for what, (host, port, names) in wanted.items():
            try:
                bound[what] = on_error.enter_context(bind(host, port))
            except OSError as error:
                purpose = {"grpc": "gRPC", "rest": "REST"}.get(what, what)
                raise SettingsError(
                    f"cannot listen on {join_address(host, port)} for {purpose}: {error.strerror or error}; set {names}"
                ) from None
        on_error.pop_all()
    for what in bound.keys() & {"grpc", "rest"}:
        if wanted[what][1]:  # it listens; on Linux it keeps its port, and may listen again
            bound[what].shutdown(socket.SHUT_RD)
    return Ports(**bound)


def bind(host: str, port: int) -> socket.socket:
    """A socket with a port that no other socket has. It listens on a port that is given, because two sockets that do
    not listen may share one. Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        if port:
            bound.listen(1)
    except BaseException:
        bound.close()
        raise
    return bound


def port_of(bound: socket.socket | None) -> int:
    """0: there is none."""
    return int(bound.getsockname()[1]) if bound is not None else 0
