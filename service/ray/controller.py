# SPDX-License-Identifier: Apache-2.0
"""The controller: an actor that keeps the replicas of one fleet as its deployment wants them. One thread looks at all
replicas twice a second, and at once when one ends; the other methods only read, or leave word for it.

It keeps nothing that it could not ask the replicas for: Ray starts it again if it dies, and it goes on from there."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fused_mlp.service.local.child_server import ServerDidNotStart
from fused_mlp.service.ray.deployment import Deployment, FleetError
from fused_mlp.service.ray.endpoints import Endpoint, write_endpoints
from fused_mlp.service.ray.fleet import (
    LEAVE_GRACE_S,
    SILENT_AFTER_S,
    Member,
    Report,
    choose_endpoints,
    recall,
)
from fused_mlp.service.ray.plan import Scaler, State, plan
from fused_mlp.service.ray.replica import ReplicaActor

PERIOD_S = 0.5
LONGEST_BACKOFF_S = 60.0
SUSPECT_FOR_S = 60.0
FAILURES_OF_A_ROLLOUT = 3  # replicas that die during their start before the rollout is undone

log = logging.getLogger(__name__)


class Controller:
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._settled = deployment  # the last deployment that all replicas had
        self._wanted = deployment.fewest
        self._down = False
        self._error = ""
        self._failures = 0  # consecutive failed starts
        self._next_start = 0.0
        self._members: dict[str, Member] = {}
        self._suspects: dict[str, float] = {}  # node -> when a replica was lost there
        self._endpoints: list[Endpoint] | None = None
        context = ray.get_runtime_context()
        self._node, self._restarted = context.get_node_id(), context.was_current_actor_reconstructed
        self._lock = threading.Lock()
        self._recover()
        self._scaler = _scaler(self._deployment)
        threading.Thread(target=self._run, name="controller", daemon=True).start()

    # Commands call these

    def status(self) -> dict[str, Any]:
        now = time.monotonic()
        with self._lock:
            return {
                "deployment": asdict(self._deployment),
                "wanted": self._wanted,
                "rollout": self._deployment.generation != self._settled.generation,
                "error": self._error,
                "controller": {"node": self._node, "restarted": self._restarted, "pid": os.getpid()},
                "replicas": [_described(member, now) for member in self._members.values()],
            }

    def deployment(self) -> Deployment:
        return self._deployment

    def roll_out(self, deployment: Deployment) -> None:
        """Replace the replicas one by one. If a new one does not start, all goes back to what was.

        Raises FleetError if this deployment was not made of the present one."""
        with self._lock:
            if deployment == self._deployment:  # called again by a caller that got no answer
                return
            if self._unsure():
                raise FleetError("no replica has answered since the controller started again; try again")
            if deployment.revision != self._deployment.revision + 1:
                raise FleetError(f"the fleet {deployment.name!r} was changed by another command; try again")
            self._error = ""
            self._failures, self._next_start = 0, 0.0
            self._deployment, self._scaler = deployment, _scaler(deployment)
            self._wanted = min(max(self._wanted, deployment.fewest), deployment.most)

    def down(self) -> None:
        with self._lock:
            self._down = True

    # Run by the thread

    def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    self._turn(time.monotonic())
                self._listen(time.monotonic() + PERIOD_S)
        except BaseException:
            log.exception("the controller failed; restarting")
            os._exit(1)

    def _turn(self, now: float) -> None:
        self._drop_lost(now)
        if self._down or not self._unsure():
            self._act(now)
        self._publish(now)
        self._ask(now)

    def _unsure(self) -> bool:
        """Whether this controller was restarted and no replica has reported the deployment of the one before."""
        return self._restarted and bool(self._members) and not any(m.report for m in self._members.values())

    def _act(self, now: float) -> None:
        known = [member.known(now) for member in self._members.values()]
        # A rollout has ended when no older replica is left.
        ready = any(k.state is State.READY for k in known)
        if ready and all(k.generation == self._deployment.generation for k in known):
            self._settled = self._deployment
        self._scale(now)
        todo = plan(now, self._wanted, self._deployment.generation, known)
        for name in todo.leave:
            member = self._members[name]
            member.leaving_since = now
            member.calls["leave"] = member.handle.leave.remote()
        if now >= self._next_start:
            for _ in range(todo.start):
                self._start(now)

    def _drop_lost(self, now: float) -> None:
        heard = any(now - member.heard < SILENT_AFTER_S for member in self._members.values() if member.report)
        for member in list(self._members.values()):
            if not (reason := member.lost(now, heard)):
                continue
            if not member.was_ready and member.leaving_since is None:
                self._failed(member, f"a replica was {reason}")
            else:
                log.error("giving up on %s: %s", member.name, reason)
            if member.report:
                self._suspects[member.report.node] = now
            self._give_up(member)

    def _ask(self, now: float) -> None:
        """Asks a replica again once it has answered; stops it once it has been out of the endpoints for long enough."""
        for member in self._members.values():
            left_s = 0.0 if member.leaving_since is None else now - member.leaving_since
            if left_s > LEAVE_GRACE_S and not member.stopping:
                member.stopping = True
                member.calls["stop"] = member.handle.stop.remote()
            if "report" not in member.calls:
                member.calls["report"] = member.handle.report.remote(self._deployment, self._settled)
            if "ended" not in member.calls:
                member.calls["ended"] = member.handle.ended.remote()

    def _scale(self, now: float) -> None:
        if self._down:
            self._wanted = 0
            return
        loads = [
            member.report.utilization
            for member in self._members.values()
            if member.report and member.state(now) is State.READY
        ]
        bounds = self._deployment.fewest, self._deployment.most
        self._wanted = self._scaler.wanted(now, self._wanted, *bounds, loads)

    def _start(self, now: float) -> None:
        deployment = self._deployment
        name = f"{deployment.name}/replica-{deployment.generation}-{uuid.uuid4().hex[:6]}"
        handle = ReplicaActor.options(
            name=name,
            lifetime="detached",  # it outlives this process, which may be restarted
            num_cpus=deployment.cpus,
            num_gpus=deployment.gpus,
            scheduling_strategy=self._place(now),
            max_restarts=0,
        ).remote(deployment, self._settled)
        member = self._members[name] = Member(name, handle, now, now, deployment.generation)
        member.calls["start"] = handle.start.remote()

    def _place(self, now: float) -> Any:
        """Spreads replicas over the nodes. Ray places actors on a lost node until it declares it dead, so shortly after
        a replica was lost, the other node with the fewest replicas is named."""
        suspects = {node for node, since in self._suspects.items() if now - since < SUSPECT_FOR_S}
        used = Counter(member.report.node for member in self._members.values() if member.report)
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]] if suspects else []
        nodes = sorted((node for node in nodes if node not in suspects), key=lambda node: used[node])
        return NodeAffinitySchedulingStrategy(nodes[0], soft=True) if nodes else "SPREAD"

    def _listen(self, until: float) -> None:
        """Takes answers as they come, for a period, or until a replica has ended."""
        while (left := until - time.monotonic()) > 0:
            waiting = {
                ref: (member, what) for member in self._members.values() for what, ref in member.calls.items()
            }
            if not waiting:
                time.sleep(left)
                return
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
            for ref in done:
                member, what = waiting[ref]
                with self._lock:
                    member.calls.pop(what, None)
                    if not self._take(member, what, ref):
                        return

    def _take(self, member: Member, what: str, ref: Any) -> bool:
        """False: the replica has ended."""
        try:
            answer = ray.get(ref)
        except ServerDidNotStart as error:
            self._failed(member, str(error.cause), for_certain=True)  # type: ignore[attr-defined] # Ray adds it
            self._give_up(member)
            return False
        except ActorUnavailableError:  # it may recover; until then it is silent
            return True
        except RayActorError as error:
            if member.state(time.monotonic()) is State.STARTING:
                self._failed(member, f"a replica ended while it started: {str(error).splitlines()[0]}")
            self._members.pop(member.name, None)
            return False
        except RayError as error:  # a bug in a method of the replica; a replica that cannot report is silent
            said = error.cause if isinstance(error, RayTaskError) else error
            if what == "start":
                self._failed(member, f"a replica did not start: {said!r}")
                self._give_up(member)
                return False
            log.error("%s: %s: %r", member.name, what, said)
            return True
        if what == "report" and isinstance(answer, Report):
            member.hear(time.monotonic(), answer)
            # A restarted controller may learn only now what deployment the one before had.
            if answer.deployment.revision > self._deployment.revision:
                self._deployment, self._settled = answer.deployment, answer.settled
                self._scaler = _scaler(self._deployment)
            if answer.ready and answer.generation == self._deployment.generation:
                self._failures = 0
        return True

    def _failed(self, member: Member, error: str, for_certain: bool = False) -> None:
        """A replica did not become ready. `for_certain`: its server reported the reason, so another try would fail the
        same way."""
        log.error("%s: %s", member.name, error)
        self._error = error
        if member.generation != self._deployment.generation:
            return
        self._failures += 1
        rolling_out = self._deployment.generation != self._settled.generation
        if rolling_out and (for_certain or self._failures >= FAILURES_OF_A_ROLLOUT):
            self._deployment = replace(self._settled, revision=self._deployment.revision + 1)
            self._failures = 0
            return
        self._next_start = time.monotonic() + min(LONGEST_BACKOFF_S, 2.0**self._failures)

    def _give_up(self, member: Member) -> None:
        with suppress(RayError):
            ray.kill(member.handle, no_restart=True)
        self._members.pop(member.name, None)

    def _publish(self, now: float) -> None:
        endpoints = choose_endpoints(now, list(self._members.values()), self._endpoints or [])
        if endpoints == self._endpoints:
            return
        if self._restarted and self._endpoints is None and not endpoints and self._members:
            return  # the files of the earlier controller stay until a replica reports
        try:
            if self._deployment.folder:
                write_endpoints(Path(self._deployment.folder), self._deployment.name, endpoints)
            self._endpoints = endpoints
        except OSError as error:  # the next turn tries again
            self._error = f"the endpoints cannot be written: {error}"
            log.error("%s", self._error)

    def _recover(self) -> None:
        """Restores the state of a restarted controller from what the replicas know."""
        now = time.monotonic()
        prefix = f"{self._deployment.name}/replica-"
        for name in [name for name in ray.util.list_named_actors() if name.startswith(prefix)]:
            with suppress(ValueError):  # the replica has ended
                handle = ray.get_actor(name)
                generation = int(name.removeprefix(prefix).partition("-")[0])
                self._members[name] = Member(name, handle, now, now, generation)
        first = {member.handle.report.remote(): member for member in self._members.values()}
        done, _ = ray.wait(list(first), num_returns=len(first), timeout=5) if first else ([], [])
        for ref in done:
            with suppress(RayError):
                first[ref].hear(now, ray.get(ref))
        for member in self._members.values():
            # The call may have failed or been lost with its caller; a rollout that is running or done is not repeated.
            member.calls["start"] = member.handle.start.remote()
        self._deployment, self._settled = recall(self._deployment, list(self._members.values()))
        # The scaler keeps the number within the bounds, once they are known.
        self._wanted = sum(member.leaving_since is None for member in self._members.values())


def _scaler(deployment: Deployment) -> Scaler:
    return Scaler(deployment.target_utilization, deployment.scale_down_after_s)


def _described(member: Member, now: float) -> dict[str, Any]:
    report = member.report
    return {
        "name": member.name,
        "state": member.state(now).value,
        "generation": member.generation,
        "node": report.node if report else "",
        "address": report.address if report else "",
        "metrics_url": report.metrics_url if report else "",
        "pid": report.pid if report else 0,
        "utilization": round(report.utilization, 3) if report else None,
    }
