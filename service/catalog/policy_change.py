# SPDX-License-Identifier: Apache-2.0
"""A change of the policies of what is served: versions are loaded and kernels built beside those that serve, and take
over with the new policies in one step. Owned by one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Self

from fused_mlp.kernels import KernelUnavailable
from fused_mlp.models import ModelLoadError
from fused_mlp.service import _engine
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.catalog.table import ModelTable
from fused_mlp.service.catalog.unknown_names import check_arms, check_labels
from fused_mlp.service.catalog.versions.building import KernelBuilder, check_torch
from fused_mlp.service.catalog.versions.loading import on_demand
from fused_mlp.service.catalog.versions.on_demand import OnDemand
from fused_mlp.service.catalog.versions.room import bytes_to_build
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.policy.policies import Policies
from fused_mlp.service.policy.policy import Policy


@dataclass
class Building:
    """The parts of the catalog that a change of policies needs. `changing` is held while kernels are built. `load`: the
    versions of a model that a policy selects; `retire`: those that its policy does not; both wait for that lock.
    `later` runs a callback for a model in the background."""

    table: ModelTable
    builder: KernelBuilder
    on_demand: OnDemand
    changing: threading.Lock
    load: Callable[[str, Policy], None]
    retire: Callable[[str], None]
    later: Callable[[Callable[[str], None], str], object] = lambda call, name: call(name)


class PolicyChange:
    """A change for one model, or for all of them (empty name). `fields`: those that the caller named."""

    def __init__(
        self, building: Building, name: str = "", fields: Collection[str] = (), may_be_away: bool = False
    ) -> None:
        self._to = building
        self._table = building.table
        self._name = name
        self._fields = fields
        self._may_be_away = may_be_away
        self._loaded: set[str] = set()
        self._changed: list[tuple[ServedModel, ServedModel]] = []  # before, after
        self._in_room: list[object] = []
        self._pairs: dict[tuple[str, int], tuple[ServedVersion, ServedVersion]] = {}  # before, after
        # Before the versions take over: lanes that were built. Afterwards: lanes that were replaced.
        self._unused: list[_engine.Lane] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._table.remove(self._unused)
        for holder in self._in_room:
            self._to.on_demand.room.give_back(holder)
        if kind is not None:
            for each in self._loaded:  # for policies that were refused
                self._to.later(self._to.retire, each)
        for before, after in self._changed:
            self._retire_unselected(after.name, before.policy, after.policy)

    def prepare(self, policies: Policies) -> None:
        """Raises InvalidInput, ModelNotFound, KernelError."""
        while True:
            with self._table.lock:
                if self._name not in self._table.models and self._name and not self._may_be_away:
                    raise ModelNotFound(_engine.quote_name(self._name))
                new = self._new(policies)
                for policy in (policies.default, *new.values()):
                    check_torch(policy)
                to_load = [n for n, policy in new.items() if n not in self._loaded and self._needs(n, policy)]
                for name, policy in () if to_load else new.items():
                    self._check_names(name, policy)
                incomplete = self._incomplete(new)
            # Without the lock above: requests are routed, and other policies change, while kernels are built.
            for name in to_load:
                self._to.load(name, new[name])
            self._loaded.update(to_load)
            if not to_load and not incomplete:
                return
            if not to_load:
                self._build(incomplete, strict=bool(self._name))

    def publish(self, policies: Policies, commit: Callable[[], None]) -> dict[str, tuple[Policy, Policy]]:
        """An explicit variant re-enables a withdrawn kernel."""
        while True:
            with self._table.lock:
                new = self._new(policies)
                incomplete = self._incomplete(new)
                if not incomplete:
                    commit()
                    before = [self._table.models[name] for name in new]
                    applied = [self._applied(model) for model in before]
                    again = "variant" in self._fields
                    after = [model.under(new[model.name], again=again) for model in applied]
                    self._table.publish({model.name: model for model in after})
                    for shadow in (v.shadow for model in after for v in model.versions):
                        if shadow is not None:
                            shadow.restart()
                    self._take_over(applied)
                    break
            self._build(incomplete, strict=False)  # versions that were loaded since prepare()
        self._changed = list(zip(before, after, strict=True))
        return {old.name: (old.policy, model.policy) for old, model in self._changed}

    def _new(self, policies: Policies) -> dict[str, Policy]:
        names = [self._name] if self._name else self._table.models
        return {name: policies.of(name) for name in names if name in self._table.models}

    def _incomplete(self, new: dict[str, Policy]) -> dict[str, Policy]:
        return {n: policy for n, policy in new.items() if self._applied(self._table.models[n]).lacks(policy)}

    def _needs(self, name: str, policy: Policy) -> bool:
        """Whether the policy may need versions that are not served."""
        model = self._table.models[name]
        named = policy.named - model.policy.named - {v.version for v in model.versions}
        return policy.versions != model.policy.versions or bool(named)

    def _check_names(self, name: str, policy: Policy) -> None:
        model = self._table.models[name]
        if self._name:
            check_arms(model.under(policy), self._fields)
        if "labels" in self._fields and policy is not model.policy:
            check_labels(model, model.under(policy))

    def _retire_unselected(self, name: str, old: Policy, new: Policy) -> None:
        """Drops versions that only the old policy selected. A change of `versions` is answered when that is done; one
        that only stops naming a version, such as a rollback, does not wait for loads."""
        if old.versions != new.versions:
            self._to.retire(name)
        elif new.versions != "all" and old.named - new.named:
            self._to.later(self._to.retire, name)

    def _build(self, policies: dict[str, Policy], *, strict: bool) -> None:
        with self._to.changing:
            for name, policy in policies.items():
                self._build_model(name, policy, strict=strict)

    def _build_model(self, name: str, policy: Policy, *, strict: bool) -> None:
        """Builds what the versions of a model lack under the policy. Raises KernelError."""
        model = self._table.models.get(name)
        if model is None:
            return  # unloaded meanwhile
        for before, current in zip(model.versions, self._applied(model).versions, strict=True):
            if current.lacks(policy):
                if self._take_room(current, policy):
                    after = self._to.builder.complete(current, policy, strict=strict)
                else:
                    assert current.weights is not None
                    after = on_demand(current, current.weights)
                self._unused += after.lanes_without(current)
                self._pairs[name, before.version] = before, after

    def _take_room(self, version: ServedVersion, policy: Policy) -> bool:
        """Until the change ends. False: in another precision the version has room only without its present kernels."""
        room = self._to.on_demand.room
        outdated = version.outdated(policy)
        new = bytes_to_build(version, policy)
        size = version.memory_bytes + new
        key = version.model, version.version
        holder = self, key
        self._in_room.append(holder)
        try:
            if not outdated or not room.could_hold(new):
                room.take(holder, size, instead_of=key)
                return True
            return room.could_hold(size) and room.try_take(holder, size, instead_of=key)
        except ModelLoadError as error:
            raise KernelUnavailable(f"{version.model}: {error}") from None

    def _applied(self, model: ServedModel) -> ServedModel:
        """The model with the versions that were built for it. A version whose kernels or fallback changed since then
        stays as it is."""
        versions = []
        for v in model.versions:
            before, after = self._pairs.get((v.model, v.version), (v, v))
            same = v.lanes == before.lanes and v.fallback == before.fallback
            versions.append(after if same else v)
        return replace(model, versions=tuple(versions))

    def _take_over(self, models: Collection[ServedModel]) -> None:
        """Keeps the lanes that are published now, and gives up those that they replace."""
        for v in (v for model in models for v in model.versions):
            before, after = self._pairs.get((v.model, v.version), (v, v))
            if v is after:
                used = list(after.lanes.values())
                self._unused = [lane for lane in self._unused if lane not in used]
                self._unused += before.lanes_without(after)
