# SPDX-License-Identifier: Apache-2.0
"""The models that are served, and their routes in the engine: both change together, under one lock that is held only
while they do. A change costs what it changes, not what is served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from fused_mlp.service import _engine
from fused_mlp.service.catalog.ledger import Ledger
from fused_mlp.service.catalog.records import ServedModel, ServedVersion, VersionShadow
from fused_mlp.service.policy.arm import LATEST, PREVIOUS, Arm, parse_arm
from fused_mlp.service.settings.settings import Settings


@dataclass
class LoadCounts:
    """Loads and unloads of versions since the start. A version whose kernels are replaced counts as both."""

    loads: int = 0
    unloads: int = 0

    def count(self, before: ServedModel | None, after: ServedModel | None) -> None:
        old = {v.version: v for v in before.ready} if before else {}
        new = {v.version: v for v in after.ready} if after else {}
        kept = sum(
            not set(v.lanes.values()).isdisjoint(new[n].lanes.values()) for n, v in old.items() if n in new
        )
        self.loads += len(new) - kept
        self.unloads += len(old) - kept


class ModelTable:
    """`models` may be read by any thread; `publish` and `replace` need the lock. `on_shadow` is called when a model
    compares its variants."""

    def __init__(
        self,
        settings: Settings,
        engine: _engine.Engine,
        router: _engine.Router,
        ledger: Ledger,
        on_shadow: Callable[[], object],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._router = router
        self._ledger = ledger
        self._on_shadow = on_shadow
        self.models: dict[str, ServedModel] = {}
        self.version_shadows: dict[str, VersionShadow] = {}  # the last of each model
        self.load_counts = LoadCounts()
        self.lock = threading.Lock()

    def all(self) -> list[ServedModel]:
        return list(self.models.values())  # in one step: other threads change it

    def loaded(self) -> list[ServedVersion]:
        return [v for model in self.all() for v in model.versions if v.state == "READY"]

    def owner(self, shadow: _engine.Shadow) -> ServedVersion | None:
        """None: unloaded meanwhile."""
        return next((v for m in self.all() for v in m.versions if v.shadow is shadow), None)

    def publish(self, changed: Mapping[str, ServedModel], removed: Collection[str] = ()) -> None:
        for name in (*changed, *removed):
            self.load_counts.count(self.models.get(name), changed.get(name))
        self.models.update(changed)
        for name in removed:
            del self.models[name]
        self._router.update(
            [*changed, *removed],
            [
                _route(model, version, self._settings, self._ledger.of(model.name).unserved)
                for model in changed.values()
                for version in model.versions
            ],
            [_plan(model) for model in changed.values()],
        )
        for model in changed.values():
            for version in model.versions:
                for lane in version.lanes.values():
                    lane.weight = model.policy.weight
                if version.shadow is not None:
                    share = 0.0 if model.policy.shadow_arm else model.policy.shadow
                    tolerance = model.policy.shadow_tolerance or version.tolerance
                    self._engine.set_shadow(version.shadow, share, tolerance)
                    if share:
                        self._on_shadow()
            self._shadow_versions(model)
        for name in removed:
            self.version_shadows.pop(name, None)

    def _shadow_versions(self, model: ServedModel) -> None:
        """The arm of another version that runs batches of the default arm again, if the policy names one."""
        wanted = model.policy.shadow_arm if model.policy.shadow else ""
        before = self.version_shadows.get(model.name)
        if not wanted and before is None:
            return
        arm = parse_arm(wanted) if wanted else Arm()
        live, other = model.default, model.find_arm(arm) if wanted else None
        lanes = (live.lane() if live else None), (other.lane(arm.variant) if other else None)
        if before is not None and before.lanes != lanes:
            self._engine.set_shadow(before.shadow, 0.0, 1.0)
            # Its counts are kept, its kernels are not.
            before = self.version_shadows[model.name] = replace(before, lanes=None)
        if live is None or other is None or lanes[0] is None or lanes[1] is None:
            return
        if model.arm_problem(arm) or model.shadow_problem(arm):
            return
        if before is None or before.lanes != lanes:
            names = f"{live.version}/{live.variant}", f"{other.version}/{arm.variant or other.variant}"
            on_cpu = all(kernel.device == "cpu" for v in (live, other) for kernel in v.kernels)
            counted = before is not None and (before.arm, before.shadow_arm) == names
            metrics = before.metrics if before is not None and counted else _engine.ShadowMetrics()
            shadow = self._engine.add_shadow(
                f"{model.name} {names[0]} {names[1]}",
                lanes[0],
                lanes[1],
                cpu_time=on_cpu,
                versions=True,
                metrics=metrics,
            )
            before = VersionShadow(*names, (lanes[0], lanes[1]), shadow, metrics)
            self.version_shadows[model.name] = before
        self._engine.set_shadow(before.shadow, model.policy.shadow, 1.0)

    def replace(self, old: ServedVersion, new: ServedVersion) -> None:
        self.publish({old.model: self.models[old.model].replaced(old, new)})

    def release(self, versions: Iterable[ServedVersion]) -> None:
        """Removes the lanes of versions that are no longer published. Accepted requests are answered first."""
        self.remove(lane for version in versions for lane in version.lanes.values())

    def remove(self, lanes: Iterable[_engine.Lane]) -> None:
        for lane in lanes:
            self._engine.remove_lane(lane)


def _plan(model: ServedModel) -> _engine.RoutePlan:
    """An arm that cannot answer takes no requests: they stay with the default."""
    arms = []
    for arm, share in model.policy.shares:
        version = model.find_arm(arm)
        if version is not None and not model.arm_problem(arm):
            arms.append((version.version, _engine.Variant[arm.variant or "unspecified"], share))
    labels = {name: v.version for name in (LATEST, PREVIOUS) if (v := model.named(name)) is not None}
    policy = model.policy
    latest = policy.version == LATEST and policy.canary is None
    default = 0 if latest or model.default is None else model.default.version
    return _engine.RoutePlan(
        model=model.name, default_version=default, arms=arms, labels=[*labels.items(), *policy.labels.items()]
    )


def _route(
    model: ServedModel, served: ServedVersion, settings: Settings, unserved: _engine.RequestMetrics
) -> _engine.RouteEntry:
    """Versions that are loading or failed to load have a route too: requests for them get UNAVAILABLE, not
    NOT_FOUND."""
    spec = served.spec
    return _engine.RouteEntry(
        model=served.model,
        version=served.version,
        fused=served.lanes.get("fused"),
        unfused=served.lanes.get("unfused"),
        variant=_engine.Variant[served.variant],
        allow_override=model.policy.allow_override,
        ready=served.state == "READY",
        loading=served.state == "LOADING",
        on_demand=served.on_demand and not served.no_room,
        no_room=served.no_room,
        in_features=spec.in_features if spec else 0,
        out_features=spec.out_features if spec else 0,
        max_request_rows=settings.limits.max_request_rows,
        split=model.policy.split,
        withdrawn=served.fallback is not None and served.fallback.reason == "shadow_mismatch",
        outputs=[
            (output.name, width, output.squeeze)
            for output, width in zip(spec.outputs, spec.output_widths, strict=True)
        ]
        if spec
        else (),
        input_shape=spec.input_shape or () if spec else (),
        unserved=unserved,
        layout=served.layout,
    )
