"""The models that are served, and their routes in the engine: both change together, under one lock that is held only
while they do. A change costs what it changes, not what is served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from fused_mlp.service import _engine
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.settings.settings import Settings


class ModelTable:
    """`models` may be read by any thread; `publish` and `replace` need the lock. `on_shadow` is called when a model
    compares its variants."""

    def __init__(
        self,
        settings: Settings,
        engine: _engine.Engine,
        router: _engine.Router,
        on_shadow: Callable[[], object],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._router = router
        self._on_shadow = on_shadow
        self.models: dict[str, ServedModel] = {}
        self.lock = threading.Lock()

    def all(self) -> list[ServedModel]:
        return list(self.models.values())  # in one step: other threads change it

    def loaded(self) -> list[ServedVersion]:
        return [v for model in self.all() for v in model.versions if v.state == "READY"]

    def owner(self, shadow: _engine.Shadow) -> ServedVersion | None:
        """None: unloaded meanwhile."""
        return next((v for m in self.all() for v in m.versions if v.shadow is shadow), None)

    def publish(self, changed: Mapping[str, ServedModel], removed: Collection[str] = ()) -> None:
        self.models.update(changed)
        for name in removed:
            del self.models[name]
        self._router.update(
            [*changed, *removed],
            [
                _route(model, version, self._settings)
                for model in changed.values()
                for version in model.versions
            ],
        )
        for model in changed.values():
            for version in model.versions:
                for lane in version.lanes.values():
                    lane.weight = model.policy.weight
                if version.shadow is not None:
                    tolerance = model.policy.shadow_tolerance or version.tolerance
                    self._engine.set_shadow(version.shadow, model.policy.shadow, tolerance)
                    if model.policy.shadow:
                        self._on_shadow()

    def replace(self, old: ServedVersion, new: ServedVersion) -> None:
        self.publish({old.model: self.models[old.model].replaced(old, new)})

    def release(self, versions: Iterable[ServedVersion]) -> None:
        """Of versions that are no longer published: requests accepted before are answered."""
        self.remove(lane for version in versions for lane in version.lanes.values())

    def remove(self, lanes: Iterable[_engine.Lane]) -> None:
        for lane in lanes:
            self._engine.remove_lane(lane)


def _route(model: ServedModel, served: ServedVersion, settings: Settings) -> _engine.RouteEntry:
    """Versions that are loading or failed to load have a route too: requests for them get UNAVAILABLE, not
    NOT_FOUND."""
    # Without room, requests are refused for a while. Not those for a default above other versions: they wait, because
    # refusing them would have an older version answer.
    waits = served is model.default and len(model.answering) > 1
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
        on_demand=served.on_demand and (waits or not served.no_room),
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
        pinned=str(served.version) == model.policy.version,
    )
