# SPDX-License-Identifier: Apache-2.0
"""Runs the canaries that policies ask for: step by step, back at once when the new arm is worse. Looks once a second,
on one thread at a time; all that must survive a restart is in the policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fused_mlp.kernels import KernelError
from fused_mlp.service import _engine
from fused_mlp.service.arm import LATEST, PREVIOUS
from fused_mlp.service.canary.evidence import Fault, Traffic, find_fault
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import CanaryStatus, ServedModel, ServedVersion
from fused_mlp.service.errors import ServiceError
from fused_mlp.service.settings.canary import CanaryPlan

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class _Step:
    """One step that runs, and the counters of both arms when it began."""

    plan: CanaryPlan
    share: float
    began: float
    lanes: tuple[_engine.Lane, _engine.Lane]  # old, new
    before: tuple[Traffic, Traffic]
    reference: Traffic  # of the old arm in the step before: at 100 % there is no other


class Canaries:
    def __init__(self, catalog: Catalog, clock: Callable[[], float] = time.monotonic) -> None:
        self._catalog = catalog
        self._clock = clock
        self._steps: dict[str, _Step] = {}

    @property
    def wanted(self) -> bool:
        """Whether there is something to look at: one that runs, or ran until a change of policy."""
        states = self._catalog.canaries.copy().values()
        return any(told.state == "running" for told in states) or bool(self._catalog.models_with_canary())

    def look(self) -> None:
        states = self._catalog.canaries.copy()  # first: one that starts meanwhile is not among the planned
        planned = self._catalog.models_with_canary()
        names = {model.name for model in planned}
        for name in self._steps.keys() - names:
            self._forget(name)  # unloaded, or stopped by a change of policy
        for name, told in states.items():
            if told.state == "running" and name not in names and self._catalog.canaries.get(name) is told:
                self._catalog.canaries[name] = replace(
                    told, state="stopped", share=0.0, text="by a change of policy"
                )
                log.info("canary of %s to %s: stopped by a change of policy", name, told.to)
        for model in planned:
            plan = model.policy.canary
            assert plan is not None
            try:
                self._look_at(model, plan)
            except (ServiceError, KernelError) as error:  # another change of policy came before this one
                log.error("canary of %s to %s: %s", model.name, plan.to, error)

    def _look_at(self, model: ServedModel, plan: CanaryPlan) -> None:
        new = model.find_arm(plan.arm)
        if plan.to not in model.policy.arms and (new is None or new.state == "LOADING"):
            self._tell(model, plan, "running", "waits for its version", 0.0)
            return
        if new is None or model.arm_problem(plan.arm):
            self._go_back(model, plan, Fault("unavailable", model.arm_problem(plan.arm)))
            return
        if plan.to not in model.policy.arms:
            self._start(model, plan, new)
            return
        old = model.default
        if old is None or old.lane() is None or new.lane(plan.arm.variant) is None:
            return  # not loaded yet: the first request for it loads it
        step = self._current_step(model, plan, old, new)
        seen = tuple(Traffic.of(lane).since(then) for lane, then in zip(step.lanes, step.before, strict=True))
        others = seen[0] if seen[0].requests >= plan.min_requests else step.reference
        if fault := find_fault(others, seen[1], plan):
            self._go_back(model, plan, fault)
        elif self._clock() - step.began < plan.interval_s:
            return
        elif seen[1].requests < plan.min_requests:
            text = f"waits for requests: {seen[1].requests:,} of {plan.min_requests:,} at least"
            self._tell(model, plan, "running", text, step.share)
        elif not others.requests:
            self._find_reference(model, plan, step)
        elif step.share >= plan.steps[-1] / 100 - 1e-9:
            self._promote(model, plan, new)
        else:
            share = next(percent / 100 for percent in plan.steps if percent / 100 > step.share + 1e-9)
            self._steps[model.name] = replace(step, reference=others)
            self._set(model, plan, {"arms": {plan.to: share}})
            self._tell(
                model, plan, "running", f"as good as the old arm so far: {share:.4g} from now on", share
            )

    def _find_reference(self, model: ServedModel, plan: CanaryPlan, step: _Step) -> None:
        """Nothing is known of the old arm, so the new one cannot be as good. With all requests at the new one, which
        happens after a restart in the last step, the old arm gets some again."""
        if step.share < 1:
            self._tell(model, plan, "running", "waits for requests that the old arm answers", step.share)
            return
        share = plan.steps[0] / 100
        self._set(model, plan, {"arms": {plan.to: share}})
        self._tell(model, plan, "running", "begins anew: there is nothing to compare with", share)

    def _start(self, model: ServedModel, plan: CanaryPlan, new: ServedVersion) -> None:
        """The default stays what it is, unless that is the new version already, as with `latest`. Both arms are of
        certain versions from now on: neither `latest` nor a label may bring another one in meanwhile."""
        if problem := model.canary_problem(plan.arm):
            self._go_back(model, plan, Fault("unavailable", problem))
            return
        old = model.default
        if old is new and plan.arm.variant in (None, old.variant):
            old = max((v for v in model.answering if v.version < new.version), key=_number, default=None)
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
        self._tell(model, plan, "running", f"started against version {old.version}", share)

    def _current_step(
        self, model: ServedModel, plan: CanaryPlan, old: ServedVersion, new: ServedVersion
    ) -> _Step:
        """Begins one where the share is another than before, or a reload has replaced a lane."""
        share = model.policy.arms[plan.to]
        lanes = old.lane(), new.lane(plan.arm.variant)
        assert lanes[0] is not None
        assert lanes[1] is not None
        step = self._steps.get(model.name)
        if step is None or (step.plan, step.share, step.lanes) != (plan, share, lanes):
            reference = step.reference if step is not None and step.plan == plan else Traffic()
            before = Traffic.of(lanes[0]), Traffic.of(lanes[1])
            step = _Step(plan, share, self._clock(), (lanes[0], lanes[1]), before, reference)
            self._steps[model.name] = step
            told = self._catalog.canaries.get(model.name)
            if told is None or (told.to, told.state) != (plan.to, "running"):
                self._tell(model, plan, "running", "goes on", share)
        return step

    def _promote(self, model: ServedModel, plan: CanaryPlan, new: ServedVersion) -> None:
        """The new arm becomes the default; a label that names the default moves along."""
        policy, changes = model.policy, dict[str, object]()
        if policy.version in policy.labels:
            changes["labels"] = {**policy.labels, policy.version: new.version}
        else:
            changes["version"] = str(new.version)
        if plan.arm.variant is not None:
            changes["variant"] = plan.arm.variant
        self._set(model, plan, {**changes, "arms": {}, "canary": None})
        self._forget(model.name)
        self._tell(model, plan, "promoted", f"version {new.version} is the default now", 1.0)

    def _go_back(self, model: ServedModel, plan: CanaryPlan, fault: Fault) -> None:
        share = model.policy.arms.get(plan.to, 0.0)
        self._set(model, plan, {"arms": {}, "canary": None})
        self._forget(model.name)
        self._tell(
            model, plan, "rolled_back", f"at a share of {share:.4g}: {fault.text}", 0.0, reason=fault.reason
        )

    def _set(self, model: ServedModel, plan: CanaryPlan, changes: dict[str, object]) -> None:
        """Also while the policy file cannot be used: going back must not wait for that."""
        self._catalog.policies.set(changes, model.name, by=f"the canary to {plan.to}", unkept=True)

    def _forget(self, name: str) -> None:
        self._steps.pop(name, None)

    def _tell(
        self, model: ServedModel, plan: CanaryPlan, state: str, text: str, share: float, *, reason: str = ""
    ) -> None:
        status = CanaryStatus(plan.to, state, share, text, reason)
        if self._catalog.canaries.get(model.name) == status:
            return
        self._catalog.canaries[model.name] = status
        if text:
            level = logging.ERROR if state == "rolled_back" else logging.INFO
            log.log(level, "canary of %s to %s: %s, %s", model.name, plan.to, state.replace("_", " "), text)


def _number(version: ServedVersion) -> int:
    return version.version
