# SPDX-License-Identifier: Apache-2.0
"""Versions built for a policy to come, beside those that serve: they take over with the policy, or are dropped when
what they were built from has changed meanwhile. Owned by one change of policy, on its thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fused_mlp.kernels import KernelUnavailable
from fused_mlp.models import ModelLoadError
from fused_mlp.service import _engine
from fused_mlp.service.catalog.building import KernelBuilder
from fused_mlp.service.catalog.loading import on_demand
from fused_mlp.service.catalog.on_demand import OnDemand
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.catalog.room import bytes_to_build
from fused_mlp.service.catalog.table import ModelTable
from fused_mlp.service.settings.policy import Policy


class Successors:
    def __init__(self, table: ModelTable, builder: KernelBuilder, on_demand: OnDemand) -> None:
        self._table = table
        self._builder = builder
        self._on_demand = on_demand
        self._in_room: list[object] = []
        self._pairs: dict[tuple[str, int], tuple[ServedVersion, ServedVersion]] = {}  # before, after
        # Those built, until they take over; those replaced, from then on.
        self._unused: list[_engine.Lane] = []

    def build(self, name: str, policy: Policy, *, strict: bool) -> None:
        """What the versions of a model lack under the policy. Raises KernelError."""
        model = self._table.models.get(name)
        if model is None:
            return  # unloaded meanwhile
        for before, current in zip(model.versions, self.applied(model).versions, strict=True):
            if current.lacks(policy):
                if self._take_room(current, policy):
                    after = self._builder.complete(current, policy, strict=strict)
                else:
                    assert current.weights is not None
                    after = on_demand(current, current.weights)
                self._unused += after.lanes_without(current)
                self._pairs[name, before.version] = before, after

    def _take_room(self, version: ServedVersion, policy: Policy) -> bool:
        """Until release(). False: in another precision the version has room only without its present kernels."""
        room = self._on_demand.room
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

    def applied(self, model: ServedModel) -> ServedModel:
        """The model with the successors of its versions, but for versions that have other kernels or another fallback
        than when those were built."""
        versions = []
        for v in model.versions:
            before, after = self._pairs.get((v.model, v.version), (v, v))
            same = v.lanes == before.lanes and v.fallback == before.fallback
            versions.append(after if same else v)
        return replace(model, versions=tuple(versions))

    def take_over(self, models: Iterable[ServedModel]) -> None:
        """Of models that were applied and are published now."""
        for v in (v for model in models for v in model.versions):
            before, after = self._pairs.get((v.model, v.version), (v, v))
            if v is after:
                used = list(after.lanes.values())
                self._unused = [lane for lane in self._unused if lane not in used]
                self._unused += before.lanes_without(after)

    def release(self) -> None:
        self._table.remove(self._unused)
        for holder in self._in_room:
            self._on_demand.room.give_back(holder)
