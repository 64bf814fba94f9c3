# SPDX-License-Identifier: Apache-2.0
"""Finds out whether the ports can be had, before anything slow is done. The servers bind them themselves, each in its
own way; only here do all of them say the same about a port that is taken."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from fused_mlp.service.settings.settings import Settings, SettingsError, join_address


def check_ports(settings: Settings) -> None:
    """Raises SettingsError, with the port and the setting to change. All are held until the last was tried, so that
    one port for two purposes is found, too."""
    wanted = [
        (settings.host, settings.grpc_port, "gRPC", "FUSED_MLP_GRPC_PORT or FUSED_MLP_HOST"),
        (settings.metrics_host, settings.metrics_port, "metrics", "FUSED_MLP_METRICS_PORT or _HOST"),
    ]
    if settings.rest_port != "off" and settings.front != "python":
        names = "FUSED_MLP_REST_PORT (off: none) or FUSED_MLP_HOST"
        wanted.append((settings.host, settings.rest_port, "REST", names))
    if settings.admin_port:
        wanted.append((settings.admin_host, settings.admin_port, "admin", "FUSED_MLP_ADMIN_PORT or _HOST"))
    with ExitStack() as held:
        for host, port, what, names in wanted:
            try:
                held.enter_context(_listen(host, port))
            except OSError as error:
                reason = error.strerror or str(error)
                raise SettingsError(
                    f"cannot listen on {join_address(host, port)} for {what}: {reason}; set {names}"
                ) from None


def _listen(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener
