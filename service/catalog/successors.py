"""Versions built for a policy to come, beside those that serve: they take over with the policy, or are dropped when
what they were built from has changed meanwhile. Owned by one change of policy, on its thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fused_mlp.kernels import KernelUnavailable
from fused_mlp.models import ModelLoadError
from fused_mlp.service import _engine
from fused_mlp.service.catalog.building import KernelBuilder
from fused_mlp.service.catalog.on_demand import OnDemand
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.catalog.table import ModelTable
from fused_mlp.service.settings.policy import Policy


class Successors:
    def __init__(self, table: ModelTable, builder: KernelBuilder, on_demand: OnDemand) -> None:
        self._table = table
        self._builder = builder
        self._on_demand = on_demand
        self._in_room: list[tuple[str, int]] = []
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
                self._take_room(current, policy)
                after = self._builder.complete(current, policy, strict=strict)
                self._unused += after.lanes_without(current)
                self._pairs[name, before.version] = before, after

    def _take_room(self, version: ServedVersion, policy: Policy) -> None:
        """Until release(); as for float32 kernels, and all of them anew."""
        assert version.spec is not None
        key = version.model, version.version
        self._in_room.append(key)
        try:
            self._on_demand.take_room(
                key, version.memory_bytes + 4 * version.spec.parameters * len(policy.variants)
            )
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
        for key in self._in_room:
            self._on_demand.room.give_back(key)
