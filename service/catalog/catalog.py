"""What is served: loads model versions, has the kernels built that their policies can reach, and publishes the routes.
Loads, unloads and builds run on one thread at a time; readers see whole snapshots."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches

from fused_mlp.models import ModelLoadError
from fused_mlp.models.repository import FoundModel, FoundVersion, Repository
from fused_mlp.service import _engine
from fused_mlp.service._engine import Verdict
from fused_mlp.service.catalog.building import KernelBuilder, check_torch
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.catalog.referee import Referee
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.settings.policy import ALL_MODELS, Policy
from fused_mlp.service.settings.settings import Settings

log = logging.getLogger(__name__)


class Catalog:
    def __init__(self, settings: Settings, engine: _engine.Engine, router: _engine.Router) -> None:
        self._settings = settings
        self._engine = engine
        self._router = router
        self._repository = Repository(settings.model_repository)
        self._builder = KernelBuilder(settings, engine)
        self.referee = Referee(self._owner, self._settle)
        self._models: dict[str, ServedModel] = {}
        self._default_policy = settings.default_policy
        self._policies: dict[str, Policy] = {}  # set at run time: they outlive a reload
        self._changing = threading.Lock()  # one load, unload or build of kernels at a time
        self._publishing = threading.Lock()  # guards the three above; held only while publishing
        self._on_change: list[Callable[[], object]] = []
        self._found: list[FoundModel] = []

    def models(self) -> list[ServedModel]:
        return sorted(self._models.values(), key=lambda model: model.name)

    def get(self, name: str) -> ServedModel:
        try:
            return self._models[name]
        except KeyError:
            raise ModelNotFound(_engine.quote_name(name)) from None

    def find(self, name: str, version: int = 0) -> ServedVersion:
        """A version by number; 0 is the default. Raises ModelNotFound."""
        model = self.get(name)
        if version == 0 and model.default is not None:
            return model.default
        for served in model.versions:
            if version in (0, served.version):
                return served
        raise ModelNotFound(_engine.quote_name(name), version)

    def on_change(self, callback: Callable[[], object]) -> None:
        """Called after every load, unload and change of policy, on the thread that did it."""
        self._on_change.append(callback)

    def scan(self) -> int:
        """Find what the repository holds, without reading weights, and publish it as still loading. Returns the
        width of the widest input. Raises ModelLoadError when there is no repository."""
        self._found = self._repository.scan()
        for found in self._found:
            for problem in found.problems:
                log.warning("%s", problem)
        with self._publishing:
            self._publish({found.name: self._loading(found) for found in self._found})
        specs = [v.spec for found in self._found for v in found.versions if v.spec]
        return max((spec.in_features for spec in specs), default=1)

    def load_all(self) -> None:
        """Everything that scan() found, published in one step. Broken versions are reported; nothing to serve at all
        is an error."""
        with self._changing:
            loaded = {found.name: self._load(found) for found in self._found}
            if not any(model.ready for model in loaded.values()):
                why = "; ".join(model.problems for model in loaded.values())
                raise ModelLoadError(f"nothing to serve in {self._repository.root}: {why}")
            self._install(loaded)
        for name in self._settings.policy.keys() - {ALL_MODELS, *self._models}:
            close = get_close_matches(name, self._models, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            log.warning("FUSED_MLP_POLICY names %r, which is not served here%s", name, hint)

    def load(self, name: str) -> ServedModel:
        """(Re)read one model: its new versions take over in one step, then the old lanes are removed. When a version
        cannot be served, a model that serves stays as it was: ModelLoadError. One that did not serve is published
        with the versions that can be served, as at a start."""
        with self._changing:
            served = self._load(self._repository.find(name))
            old = self._models.get(name)
            if old is not None and old.ready and not served.complete:
                self._release(served.versions)  # they were never published
                raise ModelLoadError(f"model {name!r} serves on as it was: {served.problems}")
            self._install({name: served})
            return self._models[name]

    def unload(self, name: str) -> None:
        """Requests accepted before are answered; later ones get NOT_FOUND."""
        with self._changing:
            versions = self.get(name).versions
            with self._publishing:
                self._publish({key: model for key, model in self._models.items() if key != name})
            self._release(versions)
            self._notify()

    def policy(self, name: str) -> Policy:
        """The policy that a model of that name has, or would have once loaded."""
        return self._policies.get(name) or self._settings.policy_of(name, self._default_policy)

    @property
    def default_policy(self) -> Policy:
        return self._default_policy

    def set_policy(self, changes: Mapping[str, object], name: str = "") -> list[ServedModel]:
        """Change some fields of one model's policy, or of all (and of the default) when none is named. All or
        nothing, in one step; kernels that the new policy needs are built first, which may take seconds. Raises
        InvalidInput, ModelNotFound, KernelError."""
        while True:
            with self._publishing:
                names = [self.get(name).name] if name else list(self._models)
                default = self._default_policy if name else self._default_policy.changed(changes)
                policies = {each: self.policy(each).changed(changes) for each in names}
                for policy in (default, *policies.values()):
                    check_torch(policy)
                incomplete = [each for each in names if self._models[each].lacks_kernels(policies[each])]
                if not incomplete:
                    changed = self._publish_policies(policies, default, again="variant" in changes)
                    break
            # Not under the lock above: requests are routed, and other policies change, while kernels are built.
            with self._changing:
                for each in incomplete:
                    self._complete(each, policies[each])
        for model in changed:
            log.info("policy of %s: %s", model.name, model.policy)
        self._notify()
        return changed

    def _publish_policies(
        self, policies: dict[str, Policy], default: Policy, *, again: bool
    ) -> list[ServedModel]:
        """`again`: an explicit variant re-enables a withdrawn kernel."""
        changed = [self._models[name].under(policy, again=again) for name, policy in policies.items()]
        self._default_policy, self._policies = default, self._policies | policies
        self._publish(self._models | {model.name: model for model in changed})
        for shadow in (v.shadow for model in changed for v in model.versions):
            if shadow is not None:
                shadow.arm()
        return changed

    def _complete(self, name: str, policy: Policy) -> None:
        """Build the kernels that a model needs under a policy to come, and publish them under its present one."""
        model = self._models.get(name)
        if model is None:
            return  # unloaded meanwhile
        built = {
            v.version: self._builder.with_kernels(v, policy) for v in model.versions if v.missing(policy)
        }
        with self._publishing:
            # Its policy, and versions that lack nothing, may have changed meanwhile.
            model = self._models[name]
            versions = tuple(built.get(v.version, v) for v in model.versions)
            self._publish(self._models | {name: ServedModel(name, versions).under(model.policy)})

    def _owner(self, shadow: _engine.Shadow) -> ServedVersion | None:
        """None: unloaded meanwhile."""
        return next((v for m in self._models.values() for v in m.versions if v.shadow is shadow), None)

    def _settle(self, shadow: _engine.Shadow, verdict: Verdict, detail: str) -> None:
        """What the referee found about a batch, on its thread. The first verdict of a kind is logged; the first against
        fused withdraws it, if the policy says so."""
        first = shadow.record(verdict)
        withdraw = False
        with self._publishing:
            version = self._owner(shadow)
            if not first or version is None:
                return
            model = self._models[version.model]
            if verdict is Verdict.fused_wrong and model.policy.on_mismatch == "unfused":
                withdraw = True
                self._publish(self._models | {model.name: model.without_fused(version, detail)})
        label = f"{model.name}/{version.version}"
        if withdraw:
            log.error("%s: serving UNFUSED from now on, %s", label, detail)
            self._notify()
        elif verdict is Verdict.within_bound:
            log.info("%s: no mismatch, %s", label, detail)
        else:
            log.error("%s: MISMATCH, served on as before: %s", label, detail)

    def _install(self, loaded: dict[str, ServedModel]) -> None:
        """Publish loaded models in place of those of the same names."""
        while True:
            with self._publishing:
                # A policy may have changed since the model was loaded, and may need more kernels now.
                policies = {name: self.policy(name) for name in loaded}
                incomplete = [name for name, model in loaded.items() if model.lacks_kernels(policies[name])]
                if not incomplete:
                    old = [self._models[name] for name in loaded if name in self._models]
                    new = {name: model.under(policies[name]) for name, model in loaded.items()}
                    self._publish(self._models | new)
                    break
            for name in incomplete:
                versions = tuple(self._builder.with_kernels(v, policies[name]) for v in loaded[name].versions)
                loaded = loaded | {name: ServedModel(name, versions)}
        for model in old:
            self._release(model.versions)
        self._notify()

    def _publish(self, models: dict[str, ServedModel]) -> None:
        self._models = models
        self._router.publish(
            [
                _route(model, version, self._settings)
                for model in models.values()
                for version in model.versions
            ]
        )
        for model in models.values():
            for version in model.versions:
                if version.shadow is not None:
                    tolerance = model.policy.shadow_tolerance or version.tolerance
                    self._engine.set_shadow(version.shadow, model.policy.shadow, tolerance)
                    if model.policy.shadow:
                        self.referee.start()

    def _notify(self) -> None:
        for callback in self._on_change:
            callback()

    def _release(self, versions: Iterable[ServedVersion]) -> None:
        for version in versions:
            for lane in version.lanes.values():
                self._engine.remove_lane(lane)

    def _loading(self, found: FoundModel) -> ServedModel:
        versions = (ServedVersion(found.name, v.version, "LOADING", "still loading") for v in found.versions)
        return ServedModel(found.name, tuple(versions)).under(self.policy(found.name))

    def _load(self, found: FoundModel) -> ServedModel:
        policy = self.policy(found.name)
        versions: list[ServedVersion] = []
        try:
            for version in found.versions:
                versions.append(self._load_version(found.name, version, policy))
        except BaseException:
            self._release(versions)  # they were never published
            raise
        return ServedModel(found.name, tuple(versions)).under(policy)

    def _load_version(self, name: str, found: FoundVersion, policy: Policy) -> ServedVersion:
        started = time.monotonic()
        try:
            mlp = self._repository.read(found)
        except ModelLoadError as error:
            log.error("%s/%d is not served: %s", name, found.version, error)
            # Callers are told the reason too, but not where the repository lies on this machine.
            reason = str(error).replace(f"{self._repository.root}{os.sep}", "")
            return ServedVersion(name, found.version, "UNAVAILABLE", reason)
        mlp = self._builder.in_precision(mlp, f"{name}/{found.version}")
        served = self._builder.with_kernels(ServedVersion(name, found.version, "READY", mlp=mlp), policy)
        if served.state == "READY":
            took_ms = 1000 * (time.monotonic() - started)
            log.info("loaded %s/%d (%s) in %.0f ms", name, found.version, mlp.spec.summary(), took_ms)
        return served


def _route(model: ServedModel, served: ServedVersion, settings: Settings) -> _engine.RouteEntry:
    """Versions that are loading or failed to load have a route too: requests for them get UNAVAILABLE, not
    NOT_FOUND."""
    spec = served.mlp.spec if served.mlp else None
    return _engine.RouteEntry(
        model=served.model,
        version=served.version,
        fused=served.lanes.get("fused"),
        unfused=served.lanes.get("unfused"),
        variant=_engine.Variant[served.variant],
        allow_override=model.policy.allow_override,
        ready=served.state == "READY",
        loading=served.state == "LOADING",
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
    )
