"""What is served: loads model versions, builds both kernels for each, gives them lanes in the engine, and
publishes the routes. Load and unload run on one thread at a time; readers see whole snapshots."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from fused_mlp import kernels
from fused_mlp.kernels import Kernel, KernelError, KernelRefuted, Variant
from fused_mlp.models import ModelLoadError
from fused_mlp.models.repository import FoundVersion, Repository
from fused_mlp.service import _engine
from fused_mlp.service.catalog.policy import Policy
from fused_mlp.service.catalog.records import VARIANTS, Fallback, ServedModel, ServedVersion
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.settings.settings import Settings

log = logging.getLogger(__name__)


class Catalog:
    def __init__(self, settings: Settings, engine: _engine.Engine, router: _engine.Router) -> None:
        self._settings = settings
        self._engine = engine
        self._router = router
        self._repository = Repository(settings.model_repository)
        kernels.use_kernel_cache(settings.kernel_cache)
        self._models: dict[str, ServedModel] = {}
        self._default_policy = settings.default_policy
        self._policies: dict[str, Policy] = {}  # set at run time: they outlive a reload
        self._changing = threading.Lock()  # one load or unload at a time
        self._publishing = threading.Lock()  # guards the three above; held for as long as it takes to publish
        self._on_change: list[Callable[[], object]] = []

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

    def load_all(self) -> None:
        """Everything in the repository. Broken versions are reported; nothing to serve at all is an error."""
        for found in self._repository.scan():
            for problem in found.problems:
                log.warning("%s", problem)
            self.load(found.name)
        if not any(model.ready for model in self.models()):
            why = "; ".join(model.problems for model in self.models())
            raise ModelLoadError(f"nothing to serve in {self._repository.root}: {why}")
        for name in self._settings.policy.keys() - self._models.keys():
            close = get_close_matches(name, self._models, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            log.warning("FUSED_MLP_POLICY names %r, which is not served here%s", name, hint)

    def load(self, name: str) -> ServedModel:
        """(Re)read one model: its new versions take over in one step, then the old lanes are let go. What serves
        is not given up for what cannot: ModelLoadError, and all stays as it was."""
        with self._changing:
            found = self._repository.find(name)
            versions: list[ServedVersion] = []
            try:
                for version in found.versions:
                    versions.append(self._load_version(name, version))
            except BaseException:
                self._release(versions)  # nobody was told of them
                raise
            served = ServedModel(name, tuple(versions)).under(self.policy(name))
            old = self._models.get(name)
            if old is not None and old.ready and not served.ready:
                raise ModelLoadError(f"model {name!r} serves on as it was: {served.problems}")
            self._swap(name, served)
            return served

    def unload(self, name: str) -> None:
        """Requests accepted before are answered; later ones get NOT_FOUND."""
        with self._changing:
            self.get(name)
            self._swap(name, None)

    def policy(self, name: str) -> Policy:
        """What a model of that name is, or would be, served under."""
        return self._policies.get(name) or self._settings.policy_of(name, self._default_policy)

    @property
    def default_policy(self) -> Policy:
        return self._default_policy

    def set_policy(self, changes: Mapping[str, object], name: str = "") -> list[ServedModel]:
        """Change some fields of one model's policy, or of all (and of the default) when none is named. All or
        nothing, in one step. Raises InvalidInput, ModelNotFound."""
        with self._publishing:
            names = [self.get(name).name] if name else list(self._models)
            default = self._default_policy if name else self._default_policy.changed(changes)
            policies = self._policies | {each: self.policy(each).changed(changes) for each in names}
            again = "variant" in changes  # who names fused means it
            models = self._models | {
                each: self._models[each].under(policies[each], again=again) for each in names
            }
            self._default_policy, self._policies = default, policies
            self._publish(models)
            changed = [models[each] for each in names]
            for shadow in (v.shadow for model in changed for v in model.versions):
                if shadow is not None:
                    shadow.arm()
        for model in changed:
            log.info("policy of %s: %s", model.name, model.policy)
        self._tell()
        return changed

    def report_mismatch(self, shadow: _engine.Shadow, absolute: float, relative: float) -> None:
        """The shadow found the variants of a version to differ. Called on the shadow's thread, for the first
        mismatch only."""
        with self._publishing:
            found = [(m, v) for m in self._models.values() for v in m.versions if v.shadow is shadow]
            if not found:
                return  # unloaded meanwhile
            model, version = found[0]
            detail = (
                f"fused and unfused differ by {absolute:.3g} on the same rows, {relative:.3g} of the outputs' "
                f"size, where {shadow.tolerance:.3g} is allowed"
            )
            withdraw = model.policy.on_mismatch == "unfused"
            if withdraw:
                self._publish(self._models | {model.name: model.without_fused(version, detail)})
        if withdraw:
            log.error("%s/%d: serving UNFUSED from now on, %s", model.name, version.version, detail)
            self._tell()
        else:
            log.error("%s/%d: MISMATCH, served on as before: %s", model.name, version.version, detail)

    def _swap(self, name: str, served: ServedModel | None) -> None:
        with self._publishing:
            old = self._models.get(name)
            models = {key: model for key, model in self._models.items() if key != name}
            if served is not None:
                models[name] = served.under(self.policy(name))  # it may have changed while this was loading
            self._publish(models)
        if old is not None:
            self._release(old.versions)
        self._tell()

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
                    tolerance = self._settings.shadow_tolerance or version.tolerance
                    self._engine.set_shadow(version.shadow, model.policy.shadow, tolerance)

    def _tell(self) -> None:
        for callback in self._on_change:
            callback()

    def _release(self, versions: Iterable[ServedVersion]) -> None:
        for version in versions:
            for lane in version.lanes.values():
                self._engine.remove_lane(lane)

    def _load_version(self, name: str, found: FoundVersion) -> ServedVersion:
        """Under `auto` a fused kernel that cannot be trusted leaves the unfused one to serve, loudly; a backend
        asked for by name must run, so its error is the caller's."""
        started = time.monotonic()
        try:
            mlp = self._repository.read(found)
        except ModelLoadError as error:
            log.error("%s/%d is not served: %s", name, found.version, error)
            # Callers hear the reason too: where on this machine the repository lies is not for them.
            reason = str(error).replace(f"{self._repository.root}{os.sep}", "")
            return ServedVersion(name, found.version, "UNAVAILABLE", reason)
        unfused = kernels.compile(
            mlp, variant="unfused", device=self._settings.device, tf32=self._settings.tf32
        )
        built: dict[Variant, Kernel] = {"unfused": unfused}
        fallback: Fallback | None = None
        try:
            built["fused"] = kernels.compile(
                mlp,
                variant="fused",
                device=self._settings.device,
                backend=self._settings.backend,
                threads=self._settings.threads,
                tf32=self._settings.tf32,
            )
        except KernelError as error:
            if self._settings.backend != "auto":
                raise
            fallback = Fallback(
                "load_check" if isinstance(error, KernelRefuted) else "unavailable",
                f"no fused kernel: {error}",
            )
            log.error("%s/%d: serving UNFUSED, %s", name, found.version, fallback.detail)
        built = {v: built[v] for v in VARIANTS if v in built}
        lanes = {v: self._add_lane(name, found.version, v, kernel) for v, kernel in built.items()}
        shadow = None
        if fallback is None:
            on_cpu = all(kernel.describe().device == "cpu" for kernel in built.values())
            shadow = self._engine.add_shadow(
                f"{name}/{found.version}", lanes["fused"], lanes["unfused"], cpu_time=on_cpu
            )
        log.info(
            "loaded %s/%d (%s) in %.0f ms", name, found.version, mlp.spec.summary(),
            1000 * (time.monotonic() - started),
        )  # fmt: skip
        return ServedVersion(
            name,
            found.version,
            "READY",
            reason=fallback.detail if fallback else "",
            mlp=mlp,
            kernels=tuple(kernel.describe() for kernel in built.values()),
            lanes=lanes,
            shadow=shadow,
            fallback=fallback,
        )

    def _add_lane(self, name: str, version: int, variant: Variant, kernel: Kernel) -> _engine.Lane:
        capsule: Any = kernel.capsule()
        return self._engine.add_lane(
            name=f"{name}/{version}/{variant}",
            kernel=kernel.run if capsule is None else capsule,
            in_features=kernel.spec.in_features,
            out_features=kernel.spec.out_features,
            max_batch_rows=self._settings.max_batch_rows,
            max_wait_us=self._settings.max_wait_us,
            queue_rows=self._settings.queue_rows,
        )


def _route(model: ServedModel, served: ServedVersion, settings: Settings) -> _engine.RouteEntry:
    """Versions that failed to load have one too: who asks for them hears UNAVAILABLE, not NOT_FOUND."""
    spec = served.mlp.spec if served.mlp else None
    return _engine.RouteEntry(
        model=served.model,
        version=served.version,
        fused=served.lanes.get("fused"),
        unfused=served.lanes.get("unfused"),
        variant=_engine.Variant.fused if served.variant == "fused" else _engine.Variant.unfused,
        allow_override=model.policy.allow_override,
        ready=served.state == "READY",
        in_features=spec.in_features if spec else 0,
        out_features=spec.out_features if spec else 0,
        max_request_rows=settings.max_request_rows,
        split=model.policy.split,
        withdrawn=served.fallback is not None and served.fallback.reason == "shadow_mismatch",
    )
