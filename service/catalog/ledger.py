# SPDX-License-Identifier: Apache-2.0
"""Counters of models since the start, by version and variant. Lanes come and go (versions are unloaded,
read again, rebuilt in another precision) while Prometheus takes rates. Read by scrapes, on any thread."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fused_mlp.service import _engine
from fused_mlp.variant import Variant

SWEEP_FROM = 64
MAX_COUNTED = 32  # versions of a model, those that are served apart


@dataclass(frozen=True, slots=True)
class ModelCounters:
    """`unserved`: of requests that reached none of its lanes."""

    lanes: dict[tuple[int, Variant], _engine.LaneMetrics] = field(default_factory=dict)
    shadows: dict[int, _engine.ShadowMetrics] = field(default_factory=dict)
    unserved: _engine.RequestMetrics = field(default_factory=_engine.RequestMetrics)


class Ledger:
    """`exists`: whether the repository has a model. Those that it no longer has, and that are not served, are
    forgotten."""

    def __init__(self, exists: Callable[[str], bool]) -> None:
        self._exists = exists
        self._models: dict[str, ModelCounters] = {}
        self._sweep_at = SWEEP_FROM

    def of(self, model: str) -> ModelCounters:
        found = self._models.get(model)
        return self._models.setdefault(model, ModelCounters()) if found is None else found

    def lane(self, model: str, version: int, variant: Variant) -> _engine.LaneMetrics:
        lanes = self.of(model).lanes
        return lanes.get((version, variant)) or lanes.setdefault((version, variant), _engine.LaneMetrics())

    def shadow(self, model: str, version: int) -> _engine.ShadowMetrics:
        shadows = self.of(model).shadows
        return shadows.get(version) or shadows.setdefault(version, _engine.ShadowMetrics())

    def keep_versions(self, model: str, served: Collection[int]) -> None:
        """Forgets the counters of versions that are gone, except of the last ones."""
        counters = self.of(model)
        lanes, shadows = list(counters.lanes), list(counters.shadows)  # loads on demand add to them meanwhile
        kept = {*served, *sorted({version for version, _ in lanes})[-MAX_COUNTED:]}
        for key in lanes:
            if key[0] not in kept:
                del counters.lanes[key]
        for version in shadows:
            if version not in kept:
                del counters.shadows[version]

    def models(self, served: Collection[str]) -> list[tuple[str, ModelCounters]]:
        """By name, of models that are served or could be again."""
        self._sweep(served)
        return sorted(self._models.items())

    def unloaded(self, served: Collection[str]) -> None:
        """Looks for those to forget only as often as their number has doubled."""
        if len(self._models) - len(served) >= self._sweep_at:
            self._sweep(served)
            self._sweep_at = max(SWEEP_FROM, 2 * (len(self._models) - len(served)))

    def _sweep(self, served: Collection[str]) -> None:
        for model in [model for model in list(self._models) if model not in served]:
            if not self._exists(model):
                self._models.pop(model, None)
