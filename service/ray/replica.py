# SPDX-License-Identifier: Apache-2.0
"""One replica: a Ray actor with a server as its child process; requests go directly to the server. Each ends with the
other: the child when its stdin is closed (cli/attached.py), the actor when the child has ended."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import ray

from fused_mlp.service.local.child_server import ChildServer, environment
from fused_mlp.service.ray.deployment import Deployment
from fused_mlp.service.ray.fleet import Report
from fused_mlp.service.ray.utilisation import read_load

# In addition to the time that the server gives to accepted requests.
KILL_AFTER_S = 10.0


class Replica:
    """Its methods run on several threads of the actor, and a restarted controller calls them again."""

    def __init__(self, deployment: Deployment, settled: Deployment) -> None:
        self._deployment = self._newest = deployment
        self._settled = settled
        self._node = ray.get_runtime_context().get_node_id()
        self._child: ChildServer | None = None
        self._leaving = False
        self._lock = threading.Lock()
        self._waiting = threading.Event()  # of the last call of `ended`

    @ray.method(concurrency_group="start")  # type: ignore[untyped-decorator]
    def start(self) -> None:
        """Returns at once if the server has started. Raises ServerDidNotStart."""
        if self._child is not None:
            return
        log = _log_file().open("w+")  # closed when the child is stopped
        self._child = ChildServer(
            server_environment(self._deployment, ray.util.get_node_ip_address()), log=log
        )
        threading.Thread(target=self._end_with_child, args=(self._child,), name="child", daemon=True).start()

    def _end_with_child(self, child: ChildServer) -> None:
        child.wait()
        os._exit(0 if self._leaving else 1)

    def report(self, newest: Deployment | None = None, settled: Deployment | None = None) -> Report:
        """Keeps the controller's state for a restarted one, which may know less at first."""
        with self._lock:
            if newest and settled and newest.revision >= self._newest.revision:
                self._newest, self._settled = newest, settled
            kept = self._newest, self._settled
        generation = self._deployment.generation
        if (child := self._child) is None:
            return Report(*kept, generation, self._node, leaving=self._leaving)
        load = read_load(child.metrics_url)
        return Report(
            *kept,
            generation,
            self._node,
            address=_reached(child.target),
            metrics_url=child.metrics_url.replace("//0.0.0.0:", f"//{ray.util.get_node_ip_address()}:"),
            pid=child.pid,
            ready=load.ready and not self._leaving,
            leaving=self._leaving,
            utilization=load.utilization(self._deployment.cpus),
        )

    def leave(self) -> None:
        """Marks the replica as out of the endpoints, also for a restarted controller."""
        self._leaving = True

    def stop(self) -> None:
        """SIGTERM: accepted requests are answered first. Ends the actor."""
        self._leaving = True
        if self._child is None:
            os._exit(0)
        self._child.stop(self._deployment.drain_s + KILL_AFTER_S)

    @ray.method(concurrency_group="end")  # type: ignore[untyped-decorator]
    def ended(self) -> None:
        """The caller sees the end of the actor as the answer. Returns only when the next controller calls it again."""
        mine = threading.Event()
        with self._lock:
            before, self._waiting = self._waiting, mine
        before.set()
        mine.wait()


# Reports and stops run in parallel, on threads reserved for them. Starts run one at a time, and a wait for the end runs
# while the one before returns.
ReplicaActor = ray.remote(max_concurrency=4, concurrency_groups={"start": 1, "end": 2})(Replica)


def server_environment(deployment: Deployment, node_ip: str) -> dict[str, str]:
    """Without the variables of the node that are ours."""
    own = {
        "host": node_ip,
        "metrics_host": node_ip,
        "cores": math.ceil(deployment.cpus),
        "device": "auto" if deployment.gpus else "cpu",  # other processes may use the GPUs of the node
    }
    return environment(own | deployment.settings)


def _reached(target: str) -> str:
    """The node's address for a server that listens on all addresses."""
    host, _, port = target.rpartition(":")
    return f"{ray.util.get_node_ip_address()}:{port}" if host in ("0.0.0.0", "[::]") else target


def _log_file() -> Path:
    """A file beside the logs of Ray's processes, where `ray logs` finds it."""
    context = ray.get_runtime_context()
    name = f"{context.get_actor_name().replace('/', '-')}.log"
    return Path(context.get_temp_dir(), context.get_session_name(), "logs", name)
