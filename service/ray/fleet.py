# SPDX-License-Identifier: Apache-2.0
"""The replicas that a controller knows: the last report of each, and its time. Turns reports into states. Knows Ray
only as the handles and references that it stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fused_mlp.service.ray.deployment import Deployment
from fused_mlp.service.ray.endpoints import Endpoint
from fused_mlp.service.ray.plan import Known, State


@dataclass(frozen=True)
class Report:
    """`deployment` and `settled`: the newest that the controller has sent, and the last that all replicas had, kept for
    a restarted controller; `generation`: this replica's."""

    deployment: Deployment
    settled: Deployment
    generation: int
    node: str
    address: str = ""  # empty: the server has not started yet
    metrics_url: str = ""
    pid: int = 0
    ready: bool = False
    leaving: bool = False
    utilization: float = 0.0


# A replica that has not answered for this long gets no requests; its node may be gone or stalled.
SILENT_AFTER_S = 3.0
# A replica that has not answered for this long is given up. Ray takes about 15 s to declare a node dead.
LOST_AFTER_S = 8.0
# From the beginning of its start: loading a repository takes time.
READY_WITHIN_S = 300.0
# A replica that was ready and has reported for this long that it is not, for example after losing its GPU.
UNREADY_FOR_S = 60.0
# Between removal from the endpoints and SIGTERM: Envoy and clients read the files in this time.
LEAVE_GRACE_S = 2.0
STOP_GRACE_S = 20.0  # beyond the server's own drain


@dataclass
class Member:
    name: str
    handle: Any
    since: float
    heard: float
    generation: int
    report: Report | None = None
    was_ready: bool = False
    last_ready: float = 0.0
    leaving_since: float | None = None
    stopping: bool = False
    calls: dict[str, Any] = field(default_factory=dict)  # call -> the reference of its answer

    def hear(self, now: float, report: Report) -> None:
        self.heard, self.report, self.generation = now, report, report.generation
        if report.ready:
            self.was_ready, self.last_ready = True, now
        if report.leaving and self.leaving_since is None:  # set by an earlier controller
            self.leaving_since = now

    def state(self, now: float) -> State:
        if self.leaving_since is not None:
            return State.LEAVING
        if self.report is None or not self.was_ready:
            return State.STARTING
        if now - self.heard > SILENT_AFTER_S:
            return State.SILENT
        return State.READY if self.report.ready else State.UNREADY

    def known(self, now: float) -> Known:
        node = self.report.node if self.report else ""
        return Known(self.name, self.generation, self.state(now), self.since, node)

    def lost(self, now: float, others_heard: bool) -> str:
        """Why the replica is given up; empty otherwise. A replica that waits for a place is kept. `others_heard`: if no
        replica reports, the controller is the one cut off."""
        if self.report is not None and others_heard and now - self.heard > LOST_AFTER_S:
            return f"not heard of for {LOST_AFTER_S:g} s"
        if self.report is not None and not self.was_ready and now - self.since > READY_WITHIN_S:
            return f"not ready within {READY_WITHIN_S:g} s"
        if self.was_ready and self.leaving_since is None and self.heard - self.last_ready > UNREADY_FOR_S:
            return f"not ready for {UNREADY_FOR_S:g} s"
        drain_s = self.report.deployment.drain_s if self.report else 0.0
        if (
            self.leaving_since is not None
            and now - self.leaving_since > LEAVE_GRACE_S + drain_s + STOP_GRACE_S
        ):
            return "did not stop in time"
        return ""

    def endpoint(self) -> Endpoint:
        assert self.report is not None, "asked of ready ones"
        return Endpoint(self.report.address, self.report.metrics_url, self.name, self.report.node)


def recall(first: Deployment, members: list[Member]) -> tuple[Deployment, Deployment]:
    """The state of a restarted controller: the newest deployment that any replica was sent, and the last one that all
    had. `first`: the deployment it was started with."""
    known = [(member.report.deployment, member.report.settled) for member in members if member.report]
    return max([(first, first), *known], key=lambda each: (each[0].revision, each[1].revision))


def choose_endpoints(now: float, members: list[Member], before: list[Endpoint]) -> list[Endpoint]:
    """The replicas that are ready. If all fell silent at once, the controller is cut off: the last known state stays,
    except for replicas that are gone."""
    states = {member.name: member.state(now) for member in members}
    ready = sorted((m for m in members if states[m.name] is State.READY), key=lambda m: m.since)
    if not ready:
        return [endpoint for endpoint in before if states.get(endpoint.replica) is State.SILENT]
    return [member.endpoint() for member in ready]
