# SPDX-License-Identifier: Apache-2.0
"""One `fused-mlp serve` of a cluster: a child process at a given place, which keeps its address over restarts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fused_mlp.service.local import child_process
from fused_mlp.service.local.child_server import ChildServer, environment

# Settings of the caller that replicas on one machine cannot share, or that lock out Envoy.
_DROPPED = ("TLS_", "METRICS_TLS", "ADMIN_", "TARGET")


@dataclass(frozen=True)
class Place:
    """The address that a replica listens on, and what to put before its command."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


class Replica:
    """It answers when the constructor returns."""

    def __init__(self, place: Place, settings: Mapping[str, object] | None = None) -> None:
        self._place = place
        self._settings = dict(settings or {})
        self._start()
        # The next start has the same ports: Envoy and Prometheus know it by them.
        self._settings |= {"grpc_port": _port(self.target), "metrics_port": _port(self.metrics_url)}

    def _start(self) -> None:
        own = {"host": self._place.host, "metrics_host": self._place.host}
        given = environment(own | self._settings, _DROPPED)
        self._server = ChildServer(given, prefix=self._place.prefix)
        self.target, self.metrics_url = self._server.target, self._server.metrics_url

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def running(self) -> bool:
        return self._server.running

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def restart(self, **changed: object) -> None:
        """SIGTERM if it still runs, and once it has answered what it accepted, a successor at the same place."""
        self.stop()
        self._settings |= changed
        self._start()

    def stop(self) -> None:
        self._server.stop()

    @staticmethod
    def stop_all(replicas: Iterable[Replica], patience_s: float) -> None:
        """At once: each answers what it accepted, and those that take longer are killed."""
        servers = [each._server for each in replicas]
        child_process.end_all([server.process for server in servers], patience_s)
        for server in servers:
            server.stop()


def _port(address: str) -> str:
    return address.rpartition(":")[2]
