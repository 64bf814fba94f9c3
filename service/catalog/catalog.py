"""What is served: loads model versions, has the kernels built that their policies can reach, and publishes the routes.
All changes but loads on demand are made one at a time; a change costs what it changes, not what is served."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from difflib import get_close_matches

from fused_mlp.kernels import KernelError
from fused_mlp.kernels.cores import usable_cores
from fused_mlp.models import ModelLoadError
from fused_mlp.models.repository import FoundModel, FoundVersion, Repository
from fused_mlp.service import _engine
from fused_mlp.service._engine import Verdict
from fused_mlp.service.catalog.building import KernelBuilder, check_torch
from fused_mlp.service.catalog.on_demand import OnDemand, Room, pause_after
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.catalog.referee import Referee
from fused_mlp.service.catalog.stored_weights import StoredWeights, without_path
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.settings.policy import ALL_MODELS, Policy
from fused_mlp.service.settings.settings import Settings

log = logging.getLogger(__name__)

MOST_NAMED = 10  # broken versions with a line of their own in the log and the banner
MOST_LOADING_THREADS = 8  # half of a load holds the GIL


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
        self._publishing = threading.Lock()  # guards what is above; held only while publishing
        self._lazy = settings.load == "lazy"
        self._on_demand = OnDemand(self._load_on_demand)
        self._room = Room(settings.max_loaded_bytes)
        self._failures: dict[
            tuple[str, int], tuple[int, str]
        ] = {}  # of loads on demand: how many, the last reason
        # Set by the service: what tells the front that the routes have changed, and what calls back later.
        self.on_loaded: Callable[[], object] = lambda: None
        self.call_later: Callable[[float, Callable[[], object]], object] = lambda _delay, _callback: None
        self._on_change: list[Callable[[Collection[str]], object]] = []
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

    def on_change(self, callback: Callable[[Collection[str]], object]) -> None:
        """Called after every load, unload and change of policy with the names of the models, on the thread that did
        it."""
        self._on_change.append(callback)

    def scan(self) -> int:
        """Find what the repository holds, without reading weights, and publish it as still loading, or as to be loaded
        on demand. Returns the width of the widest input. Raises ModelLoadError when there is no repository."""
        self._found = self._repository.scan(headers=self._lazy)
        for found in self._found:
            for problem in found.problems:
                log.warning("%s", problem)
        with self._publishing:
            state = self._waiting if self._lazy else self._loading
            self._publish({found.name: state(found) for found in self._found})
        specs = [v.spec for found in self._found for v in found.versions if v.spec]
        return max((spec.in_features for spec in specs), default=1)

    def load_all(self) -> None:
        """Everything that scan() found, published in one step. Broken versions are reported; nothing to serve at all
        is an error."""
        started = time.monotonic()
        with self._changing:
            found, self._found = self._found, []
            loaded = dict(self._models) if self._lazy else self._load_in_parallel(found)
            if not any(model.answering for model in loaded.values()):
                why = "; ".join(model.problems for model in list(loaded.values())[:MOST_NAMED])
                raise ModelLoadError(f"nothing to serve in {self._repository.root}: {why}")
            if not self._lazy:
                self._install(loaded)
        self._report_loaded(loaded.values(), time.monotonic() - started)
        for name in self._settings.policy.keys() - {ALL_MODELS, *self._models}:
            close = get_close_matches(name, self._models, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            log.warning("FUSED_MLP_POLICY names %r, which is not served here%s", name, hint)

    def _load_in_parallel(self, found: list[FoundModel]) -> dict[str, ServedModel]:
        threads = min(MOST_LOADING_THREADS, usable_cores(), len(found))
        pool = ThreadPoolExecutor(threads, "load")
        try:
            return {model.name: model for model in pool.map(self._load, found)}
        finally:
            pool.shutdown(cancel_futures=True)

    def _report_loaded(self, models: Collection[ServedModel], seconds: float) -> None:
        """A summary, and a line for each of the first broken versions."""
        versions = [v for model in models for v in model.versions]
        ready = sum(v.state == "READY" for v in versions)
        if self._lazy:
            log.info("found %d versions of %d models, which are loaded on demand", len(versions), len(models))
        else:
            log.info("loaded %d versions of %d models in %.1f s", ready, len(models), seconds)
        broken = [v for v in versions if not v.answers]
        for v in broken[:MOST_NAMED]:
            log.error("%s/%d is not served: %s", v.model, v.version, v.reason)
        if len(broken) > MOST_NAMED:
            log.error("and %d more are not served, see /status.json", len(broken) - MOST_NAMED)

    def load(self, name: str) -> ServedModel:
        """(Re)read one model: its new versions take over in one step, then the old lanes are removed. When a version
        cannot be served, a model that serves stays as it was: ModelLoadError. One that did not serve is published
        with the versions that can be served, as at a start."""
        with self._changing:
            served = self._load_now(self._repository.find(name))
            for v in served.versions:
                if v.state == "READY":
                    assert v.spec is not None
                    log.info("loaded %s/%d (%s)", name, v.version, v.spec.summary())
                else:
                    log.error("%s/%d is not served: %s", name, v.version, v.reason)
            old = self._models.get(name)
            if old is not None and old.answering and not served.complete:
                self._release(served.versions)  # they were never published
                raise ModelLoadError(f"model {name!r} serves on as it was: {served.problems}")
            self._install({name: served})
            return self._models[name]

    def _load_now(self, found: FoundModel) -> ServedModel:
        """Where models are loaded on demand, others make room for it."""
        key = found.name, 0
        parameters = sum(v.spec.parameters for v in found.versions if v.spec)
        self._take_room(key, 4 * parameters * len(self.policy(found.name).variants))
        try:
            return self._load(found)
        finally:
            self._room.give_back(key)

    def want(self, name: str, version: int = 0) -> Future[None]:
        """Have a version loaded that a request found on demand; 0 is the default. The future is done when another look
        at the routes tells more."""
        try:
            return self._on_demand.want(name, self.find(name, version).version)
        except ModelNotFound:  # unloaded meanwhile: the routes say so
            done: Future[None] = Future()
            done.set_result(None)
            return done

    def stop_loading(self) -> None:
        """Waits for loads on demand that have begun; no other begins."""
        self._on_demand.stop()

    def unload(self, name: str) -> None:
        """Requests accepted before are answered; later ones get NOT_FOUND."""
        with self._changing:
            versions = self.get(name).versions
            with self._publishing:
                self._publish({}, removed=[name])
            self._release(versions)
            self._notify([name])

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
        for model in changed[:MOST_NAMED]:
            log.info("policy of %s: %s", model.name, model.policy)
        if len(changed) > MOST_NAMED:
            log.info("and of %d more models: %s", len(changed) - MOST_NAMED, dict(changes))
        self._notify([model.name for model in changed])
        return changed

    def _publish_policies(
        self, policies: dict[str, Policy], default: Policy, *, again: bool
    ) -> list[ServedModel]:
        """`again`: an explicit variant re-enables a withdrawn kernel."""
        changed = [self._models[name].under(policy, again=again) for name, policy in policies.items()]
        self._default_policy, self._policies = default, self._policies | policies
        self._publish({model.name: model for model in changed})
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
            self._publish({name: ServedModel(name, versions).under(model.policy)})

    def _owner(self, shadow: _engine.Shadow) -> ServedVersion | None:
        """None: unloaded meanwhile."""
        models = list(self._models.values())
        return next((v for m in models for v in m.versions if v.shadow is shadow), None)

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
                self._publish({model.name: model.without_fused(version, detail)})
        label = f"{model.name}/{version.version}"
        if withdraw:
            log.error("%s: serving UNFUSED from now on, %s", label, detail)
            self._notify([model.name])
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
                    self._publish(new)
                    break
            for name in incomplete:
                versions = tuple(self._builder.with_kernels(v, policies[name]) for v in loaded[name].versions)
                loaded = loaded | {name: ServedModel(name, versions)}
        for model in old:
            self._release(model.versions)
        self._notify(loaded)

    def _publish(self, changed: Mapping[str, ServedModel], removed: Collection[str] = ()) -> None:
        self._models.update(changed)
        for name in removed:
            del self._models[name]
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
                if version.shadow is not None:
                    tolerance = model.policy.shadow_tolerance or version.tolerance
                    self._engine.set_shadow(version.shadow, model.policy.shadow, tolerance)
                    if model.policy.shadow:
                        self.referee.start()

    def _notify(self, names: Collection[str]) -> None:
        for callback in self._on_change:
            callback(names)

    def _release(self, versions: Iterable[ServedVersion]) -> None:
        for version in versions:
            for lane in version.lanes.values():
                self._engine.remove_lane(lane)

    def _waiting(self, found: FoundModel) -> ServedModel:
        """Not loaded: on demand, unless it cannot be."""
        versions = []
        for v in found.versions:
            if v.model_file is None:
                reason = without_path(self._repository, ModelLoadError(v.problem or ""))
                versions.append(ServedVersion(found.name, v.version, "UNAVAILABLE", reason))
                continue
            waiting = ServedVersion(
                found.name, v.version, "UNAVAILABLE", spec=v.spec, example=v.model_file.example
            )
            versions.append(on_demand(waiting, StoredWeights(self._repository, v)))
        return ServedModel(found.name, tuple(versions)).under(self.policy(found.name))

    def _load_on_demand(self, name: str, version: int) -> None:
        """On a thread of its own. Ends with routes that say what became of it."""
        key = name, version
        with self._publishing:
            served = self._find_on_demand(name, version)
            if served is None or served.weights is None:
                return  # loaded or unloaded meanwhile
            found = served.weights.found
            self._replace(served, replace(served, state="LOADING", reason="still loading"))
        try:
            built = self._build_on_demand(name, found, served)
        except Exception as error:
            self._report_failure(key, found, error)
        else:
            self._failures.pop(key, None)
            self._finish_on_demand(name, found, built)
        finally:
            self._room.give_back(key)
            self.on_loaded()

    def _build_on_demand(self, name: str, found: FoundVersion, served: ServedVersion) -> ServedVersion:
        """Raises ModelLoadError, KernelError."""
        assert served.spec is not None
        policy = self.policy(name)
        key = name, found.version
        self._take_room(key, 4 * served.spec.parameters * len(policy.variants))
        # Read anew what failed before: it may have been mended.
        fresh = replace(found, model_file=None) if key in self._failures else found
        built = self._load_version(name, fresh, policy)
        if built.state != "READY":
            raise ModelLoadError(built.reason)
        assert served.weights is not None
        assert built.weights is not None
        if served.weights.digest not in (None, built.weights.digest):
            log.warning("%s/%d: its files have changed since it was loaded before", *key)
        try:
            self._take_room(key, built.memory_bytes)
        except ModelLoadError:
            self._release([built])
            raise
        return built

    def _finish_on_demand(self, name: str, found: FoundVersion, built: ServedVersion) -> None:
        while True:
            with self._publishing:
                current = self._find_on_demand(name, built.version, found)
                policy = self.policy(name)
                if current is not None and not built.missing(policy):
                    self._replace(current, built)
                    return
            if current is None:  # unloaded, or read again, meanwhile
                self._release([built])
                return
            built = self._builder.with_kernels(built, policy)

    def _report_failure(self, key: tuple[str, int], found: FoundVersion, error: Exception) -> None:
        known = isinstance(error, (ModelLoadError, KernelError))
        reason = without_path(self._repository, error) if known else "internal error"
        count, before = self._failures.get(key, (0, ""))
        self._failures[key] = count + 1, reason
        pause_s = pause_after(count + 1)
        if reason != before:  # told once
            log.error("%s/%d cannot be loaded: %s", *key, reason, exc_info=None if known else error)
        with self._publishing:
            if (current := self._find_on_demand(*key, found)) is None:
                return
            failed = replace(current, state="UNAVAILABLE", reason=reason, on_demand=False)
            self._replace(current, failed)
        self._notify([key[0]])
        self.call_later(pause_s, lambda: self._try_again(key, found))

    def _try_again(self, key: tuple[str, int], found: FoundVersion) -> None:
        """The next request may have it loaded."""
        with self._publishing:
            model = self._models.get(key[0])
            for v in model.versions if model else ():
                if (
                    v.version == key[1]
                    and v.weights is not None
                    and v.weights.found is found
                    and not v.answers
                ):
                    self._replace(v, replace(v, on_demand=True))
        self._notify([key[0]])

    def _find_on_demand(
        self, name: str, version: int, found: FoundVersion | None = None
    ) -> ServedVersion | None:
        """The version, if it is still to be loaded on demand, from the same files."""
        model = self._models.get(name)
        for v in model.versions if model else ():
            if v.version == version and v.on_demand and v.weights is not None:
                return v if found is None or v.weights.found is found else None
        return None

    def _replace(self, old: ServedVersion, new: ServedVersion) -> None:
        self._publish({old.model: self._models[old.model].replaced(old, new)})

    def _take_room(self, key: tuple[str, int], size: int) -> None:
        self._room.take(key, size, self._loaded, self._unload_idle)

    def _loaded(self) -> list[ServedVersion]:
        return [v for model in list(self._models.values()) for v in model.versions if v.state == "READY"]

    def _unload_idle(self, version: ServedVersion) -> bool:
        """A request that has its lane already is answered on it: a removed lane runs what it is given."""
        with self._publishing:
            model = self._models.get(version.model)
            if model is None or version.weights is None or not any(v is version for v in model.versions):
                return False
            self._replace(version, on_demand(version, version.weights))
        self._release([version])
        log.info("unloaded %s/%d, used least recently, to make room", version.model, version.version)
        return True

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
        try:
            mlp = self._repository.read(found)
        except ModelLoadError as error:
            # Callers are told the reason too, but not where the repository lies on this machine.
            reason = without_path(self._repository, error)
            return ServedVersion(name, found.version, "UNAVAILABLE", reason)
        weights = StoredWeights.of(self._repository, found, mlp)
        served = ServedVersion(
            name, found.version, "READY", spec=mlp.spec, example=mlp.example, weights=weights
        )
        return self._builder.with_kernels(served, policy, mlp)


def on_demand(version: ServedVersion, weights: StoredWeights) -> ServedVersion:
    """The same version, not loaded."""
    return ServedVersion(
        version.model,
        version.version,
        "UNAVAILABLE",
        "not loaded: the first request for it loads it",
        spec=version.spec,
        example=version.example,
        weights=weights,
        on_demand=True,
    )


def _route(model: ServedModel, served: ServedVersion, settings: Settings) -> _engine.RouteEntry:
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
        on_demand=served.on_demand,
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
