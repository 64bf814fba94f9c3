# SPDX-License-Identifier: Apache-2.0
"""Runs the canaries that policies ask for: raises the share of the new arm step by step, and goes back at once when it
is worse. One thread at a time calls look(), once a second. The policy holds all that must survive a restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fused_mlp.kernels import KernelError
from fused_mlp.service import _engine
from fused_mlp.service.access import audit
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.errors import ServiceError
from fused_mlp.service.policy.arm import LATEST, PREVIOUS
from fused_mlp.service.policy.canary_plan import CanaryPlan, CanaryStatus
from fused_mlp.service.policy.rollout.evidence import (
    LATENCY_REQUESTS,
    Fault,
    Traffic,
    find_fault,
    unjudged_latency,
)
from fused_mlp.service.policy.rollout.pins import END_CANARY

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
# In the step of 100 % the old arm keeps at most this share until the verdict: both arms are compared at the same time.
KEPT_SHARE = 0.1
# Without enough requests the last step ends after this many intervals, and the canary goes back.
MAX_INTERVALS = 10


@dataclass(frozen=True)
class _Step:
    """A running step, and the counters of both arms when it began."""

    plan: CanaryPlan
    share: float
    began: float
    lanes: tuple[_engine.Lane, _engine.Lane]  # old, new
    before: tuple[Traffic, Traffic]


class Canaries:
    def __init__(self, catalog: Catalog, clock: Callable[[], float] = time.monotonic) -> None:
        self._catalog = catalog
        self._clock = clock
        self._steps: dict[str, _Step] = {}

    def look(self) -> None:
        canaries = self._catalog.policies.canaries
        before = canaries.copy()  # first: a canary that starts meanwhile is not among the planned
        planned = self._catalog.models_with_canary()
        names = {model.name for model in planned}
        for name in self._steps.keys() - names:
            del self._steps[name]  # unloaded, or stopped by a change of policy
        for name, status in before.items():
            if status.state == "running" and name not in names and canaries.get(name) is status:
                canaries[name] = replace(status, state="stopped", share=0.0, text="by a change of policy")
                log.info("canary of %s to %s: stopped by a change of policy", name, status.to)
        for model in planned:
            plan = model.policy.canary
            assert plan is not None
            try:
                self._look_at(model, plan)
            except (ServiceError, KernelError) as error:  # the policy changed meanwhile
                log.error("canary of %s to %s: %s", model.name, plan.to, error)
            except Exception:  # the canaries of other models go on
                log.exception("canary of %s to %s could not be checked", model.name, plan.to)

    def _look_at(self, model: ServedModel, plan: CanaryPlan) -> None:
        new = model.find_arm(plan.arm)
        if plan.to not in model.policy.arms and (new is None or new.state == "LOADING"):
            self._report(model, plan, "running", "waits for its version", 0.0)
            return
        if new is None or model.arm_problem(plan.arm):
            self._go_back(model, plan, Fault("unavailable", model.arm_problem(plan.arm)))
            return
        if plan.to not in model.policy.arms:
            self._start(model, plan, new)
            return
        old = model.default
        if old is None or old.lane() is None or new.lane(plan.arm.variant) is None:
            return  # not loaded: the first request loads it
        shares = _shares(plan)
        if model.policy.arms[plan.to] >= 1:  # the old arm needs requests to compare with
            self._set(model, plan, {"arms": {plan.to: shares[-1]}})
        step = self._current_step(model, plan, old, new)
        waited_s = self._clock() - step.began  # first: no request of this time is missing below
        of_old, of_new = (
            Traffic.of(lane).since(then) for lane, then in zip(step.lanes, step.before, strict=True)
        )
        is_last = step.share >= shares[-1] - 1e-9
        if fault := find_fault(of_old, of_new, plan):
            self._go_back(model, plan, fault)
        elif waited_s < plan.interval_s:
            return
        elif text := _missing(of_old, of_new, plan, is_last):
            if is_last and waited_s >= MAX_INTERVALS * plan.interval_s:
                self._go_back(model, plan, Fault("requests", f"gave up after {waited_s:.0f} s: {text}"))
            else:
                self._report(model, plan, "running", f"waits for requests: {text}", step.share)
        elif is_last:
            self._promote(model, plan, new, unjudged_latency(of_old))
        else:
            self._raise_share(model, plan, next(share for share in shares if share > step.share + 1e-9))

    def _raise_share(self, model: ServedModel, plan: CanaryPlan, share: float) -> None:
        self._set(model, plan, {"arms": {plan.to: share}})
        text = f"as good as the old arm so far: {share:.4g} from now on"
        if plan.steps[-1] == 100 and share == _shares(plan)[-1]:
            text += ", the old arm keeps the rest until the verdict"
        self._report(model, plan, "running", text, share)

    def _start(self, model: ServedModel, plan: CanaryPlan, new: ServedVersion) -> None:
        """Keeps the default, unless that is the new version already, as with `latest`. Names both arms by version
        number from now on: neither `latest` nor a label may bring another version in meanwhile."""
        if problem := model.canary_problem(plan.arm):
            self._go_back(model, plan, Fault("unavailable", problem))
            return
        old = model.default
        if old is new and plan.arm.variant in (None, old.variant):
            old = max(
                (v for v in model.answering if v.version < new.version), key=lambda v: v.version, default=None
            )
        if old is None:
            self._go_back(model, plan, Fault("unavailable", "there is no other version to compare with"))
            return
        share = plan.steps[0] / 100
        stays = old is model.default and model.policy.version not in (LATEST, PREVIOUS)
        changes: dict[str, object] = {} if stays else {"version": str(old.version)}
        to = str(plan.arm._replace(version=str(new.version)))
        if to != plan.to:
            plan = plan.model_copy(update={"to": to})
            changes["canary"] = plan
        self._set(model, plan, {**changes, "arms": {to: share}})
        self._report(model, plan, "running", f"started against version {old.version}", share)

    def _current_step(
        self, model: ServedModel, plan: CanaryPlan, old: ServedVersion, new: ServedVersion
    ) -> _Step:
        """Begins a step if the share has changed, or a reload has replaced a lane."""
        share = model.policy.arms[plan.to]
        lanes = old.lane(), new.lane(plan.arm.variant)
        assert lanes[0] is not None
        assert lanes[1] is not None
        step = self._steps.get(model.name)
        if step is None or (step.plan, step.share, step.lanes) != (plan, share, lanes):
            before = Traffic.of(lanes[0]), Traffic.of(lanes[1])
            step = _Step(plan, share, self._clock(), (lanes[0], lanes[1]), before)
            self._steps[model.name] = step
            status = self._catalog.policies.canaries.get(model.name)
            if status is None or (status.to, status.state) != (plan.to, "running"):
                self._report(model, plan, "running", "goes on", share)
        return step

    def _promote(self, model: ServedModel, plan: CanaryPlan, new: ServedVersion, unjudged: str) -> None:
        """Makes the new arm the default, and moves a label that names the default."""
        policy, changes = model.policy, dict[str, object]()
        if policy.version in policy.labels:
            changes["labels"] = {**policy.labels, policy.version: new.version}
        else:
            changes["version"] = str(new.version)
        if plan.arm.variant is not None:
            changes["variant"] = plan.arm.variant
        self._set(model, plan, {**changes, **END_CANARY})
        self._steps.pop(model.name, None)
        text = f"version {new.version} is the default now"
        self._report(model, plan, "promoted", f"{text}; {unjudged}" if unjudged else text, 1.0)

    def _go_back(self, model: ServedModel, plan: CanaryPlan, fault: Fault) -> None:
        share = model.policy.arms.get(plan.to, 0.0)
        self._set(model, plan, END_CANARY)
        self._steps.pop(model.name, None)
        self._report(
            model, plan, "rolled_back", f"at a share of {share:.4g}: {fault.text}", 0.0, reason=fault.reason
        )

    def _set(self, model: ServedModel, plan: CanaryPlan, changes: dict[str, object]) -> None:
        self._catalog.policies.set_by_canary(changes, model.name, by=f"the canary to {plan.to}")

    def _report(
        self, model: ServedModel, plan: CanaryPlan, state: str, text: str, share: float, *, reason: str = ""
    ) -> None:
        status = CanaryStatus(plan.to, state, share, text, reason)
        before = self._catalog.policies.canaries.get(model.name)
        if before == status:
            return
        self._catalog.policies.canaries[model.name] = status
        if before is None or (before.state, before.share) != (state, share):
            audit.record(f"canary_{state}", model=model.name, arguments=f"to {plan.to}, {share=:.4g}: {text}")
        if text:
            level = logging.ERROR if state == "rolled_back" else logging.INFO
            log.log(level, "canary of %s to %s: %s, %s", model.name, plan.to, state.replace("_", " "), text)


def _shares(plan: CanaryPlan) -> list[float]:
    """The shares of the new arm, step by step. A step of 100 % leaves the old arm some requests until the verdict."""
    shares = [percent / 100 for percent in plan.steps]
    if shares[-1] == 1:
        before = shares[-2] if len(shares) > 1 else 0.0
        shares[-1] = 1 - min(KEPT_SHARE, (1 - before) / 2)
    return shares


def _missing(old: Traffic, new: Traffic, plan: CanaryPlan, is_last: bool) -> str:
    """Which requests a step lacks for its verdict; empty: none. Promotion needs a verdict on latency too."""
    for arm, traffic in (("new", new), ("old", old)):
        if traffic.requests < plan.min_requests:
            return f"the {arm} arm has {traffic.requests:,}, needs {plan.min_requests:,}"
        if is_last and traffic.answered < LATENCY_REQUESTS:
            return f"the {arm} arm has answered {traffic.answered:,}, latency needs {LATENCY_REQUESTS}"
    return ""
