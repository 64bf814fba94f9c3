# SPDX-License-Identifier: Apache-2.0
"""Loads model versions, has the kernels built that their policies can reach, and publishes the routes.
One change at a time, except for loads on demand (versions/on_demand.py)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial

from fused_mlp.models import ModelLoadError
from fused_mlp.models.repository.repository import FoundModel, Repository
from fused_mlp.service import _engine
from fused_mlp.service._engine import Verdict
from fused_mlp.service.catalog.ledger import Ledger, ModelCounters
from fused_mlp.service.catalog.policy_change import Building, PolicyChange
from fused_mlp.service.catalog.records import ServedModel, ServedVersion, VersionShadow
from fused_mlp.service.catalog.referee import Dispute, Referee
from fused_mlp.service.catalog.table import LoadCounts, ModelTable
from fused_mlp.service.catalog.unknown_names import MAX_NAMED, UnknownNames
from fused_mlp.service.catalog.versions.building import KernelBuilder
from fused_mlp.service.catalog.versions.loading import Loader
from fused_mlp.service.catalog.versions.on_demand import OnDemand
from fused_mlp.service.catalog.versions.refresh import Refresh
from fused_mlp.service.catalog.versions.room import bytes_to_build, estimated_bytes
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.policy.file import PolicyFile
from fused_mlp.service.policy.live import LivePolicies
from fused_mlp.service.policy.policy import Policy
from fused_mlp.service.settings.settings import Settings

log = logging.getLogger(__name__)


class Catalog:
    def __init__(
        self,
        settings: Settings,
        engine: _engine.Engine,
        router: _engine.Router,
        repository: Repository | None = None,
    ) -> None:
        """`repository`: None for the folder of the settings."""
        self._settings = settings
        self.repository = repository or Repository(settings.model_repository)
        self._ledger = Ledger(self.repository.has)
        self._builder = KernelBuilder(settings, engine, self._ledger)
        self._table = ModelTable(settings, engine, router, self._ledger, self._start_referee)
        self.referee = Referee(self._table.owner, self._settle)
        self._loader = Loader(self.repository, self._builder, self.policy, self._table.release)
        self._lazy = settings.load == "lazy"
        self.on_demand = OnDemand(
            self._table,
            self._loader,
            self.repository,
            policy=self.policy,
            notify=self._notify,
            max_bytes=settings.max_loaded_bytes,
        )
        self._refresh = Refresh(
            self._table,
            self._loader,
            self._builder,
            self.on_demand,
            self._ledger,
            policy=self.policy,
            notify=self._notify,
            lazy=self._lazy,
        )
        self._unloaded: set[str] = set()  # unloaded by an operator: only an operator loads them again
        # Held during a load, an unload or a build of kernels, except for loads on demand.
        self._changing = threading.Lock()
        self.building = Building(
            self._table,
            self._builder,
            self.on_demand,
            self._changing,
            load=lambda name, policy: self.refresh(name, policy=policy, retire=False),
            retire=self.retire_unchosen,
        )
        self.unknown_names = UnknownNames(settings, self._table)
        self.policies = LivePolicies(  # they outlive a reload
            settings.policies,
            PolicyFile(path) if (path := settings.policy_path(self.repository.root)) else None,
            begin=partial(PolicyChange, self.building),
            notify=self._notify,
            file_read=lambda: self.unknown_names.log_unserved(self.policies.now),
        )
        self._on_change: list[Callable[[Collection[str]], object]] = []
        self._found: list[FoundModel] = []

    def models(self) -> list[ServedModel]:
        return sorted(self._table.all(), key=lambda model: model.name)

    @property
    def load_counts(self) -> LoadCounts:
        return self._table.load_counts

    def counters(self) -> list[tuple[str, ModelCounters]]:
        """By name: the models that are served, or were served and are still in the repository."""
        return self._ledger.models(self._table.models)

    def served_versions(self) -> dict[str, list[int]]:
        return {model.name: [v.version for v in model.versions] for model in self._table.all()}

    def get(self, name: str) -> ServedModel:
        try:
            return self._table.models[name]
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
        """Finds the models of the repository, without reading weights, and publishes them as loading, or as loaded on
        demand. Returns the width of the widest input. Raises ModelLoadError if the repository or the policy file cannot
        be read."""
        self.policies.start()
        self._found = self.repository.scan(headers=self._lazy)
        for found in self._found:
            for problem in found.problems:
                log.warning("%s", problem)
        with self._table.lock:
            state = self._loader.not_loaded if self._lazy else self._loader.still_loading
            self._table.publish({found.name: state(found) for found in self._found})
        specs = [v.spec for found in self._found for v in found.versions if v.spec]
        return max((spec.in_features for spec in specs), default=1)

    def load_all(self) -> None:
        """Loads all that scan() found and publishes it in one step. Reports broken versions. Raises ModelLoadError if
        nothing can be served."""
        started = time.monotonic()
        with self._changing:
            found, self._found = self._found, []
            loaded = dict(self._table.models) if self._lazy else self._loader.load_all(found)
            if not any(model.answering for model in loaded.values()):
                why = "; ".join(model.problems for model in list(loaded.values())[:MAX_NAMED])
                raise ModelLoadError(f"nothing to serve in {self.repository.root}: {why}")
            if not self._lazy:
                self._install(loaded)
        self._report_loaded(loaded.values(), time.monotonic() - started)
        self.unknown_names.log(self._table.models)
        self.unknown_names.log_unserved(self.policies.now)

    def _report_loaded(self, models: Collection[ServedModel], seconds: float) -> None:
        """A summary, and a line for each of the first broken versions."""
        versions = [v for model in models for v in model.versions]
        ready = sum(v.state == "READY" for v in versions)
        of_models = f"of {len(models):,} model{'s' if len(models) != 1 else ''}"
        if self._lazy:
            log.info("versions found: %d %s, loaded on demand", len(versions), of_models)
        else:
            log.info("versions loaded: %d %s, in %.1f s", ready, of_models, seconds)
        broken = [v for v in versions if not v.answers]
        for v in broken[:MAX_NAMED]:
            log.error("%s/%d is not served: %s", v.model, v.version, v.reason)
        if len(broken) > MAX_NAMED:
            log.error("and %d more are not served, see /status.json?answers=no", len(broken) - MAX_NAMED)

    def load(self, name: str) -> ServedModel:
        """Rereads a model: its new versions take over in one step, then the old lanes are removed. If a version cannot
        be served, a model that serves keeps its versions, and this raises ModelLoadError; a model that did not serve is
        published with the versions that can be served, as at the start."""
        with self._changing:
            found = self.repository.find(name)
            try:
                served = self._load_default(found) if self._lazy else self._loader.load(found)
                for v in served.versions:
                    if v.state == "READY":
                        assert v.spec is not None
                        log.info("loaded %s/%d (%s)", name, v.version, v.spec.summary())
                    elif not v.answers:
                        log.error("%s/%d is not served: %s", name, v.version, v.reason)
                old = self._table.models.get(name)
                if old is not None and old.answering and not served.complete:
                    self._table.release(served.versions)  # they were never published
                    raise ModelLoadError(f"model {name!r} keeps its current version: {served.problems}")
                self._install({name: served})
                self._ledger.keep_versions(name, [v.version for v in served.versions])
                self.on_demand.forget(name)
            finally:
                self.on_demand.room.give_back(name)
            self._unloaded.discard(name)
            return self._table.models[name]

    def refresh(
        self, name: str, held: Collection[int] = (), *, policy: Policy | None = None, retire: bool = True
    ) -> None:
        """Serves what the repository holds of a model now, except versions `held`, which are still being written.
        Reports versions that cannot be served. `policy` selects the versions; None: the model's policy. `retire`: drop
        versions that it does not select, or that are gone. Raises ModelLoadError if there is no such name."""
        with self._changing:
            if name not in self._unloaded:
                self._refresh_model(name, policy or self.policy(name), held, retire=retire)

    def retire_unchosen(self, name: str) -> None:
        """Drops versions that the policy no longer selects. Works while the repository is away."""
        with self._changing:
            self._refresh.retire_unchosen(name, self.policy(name))

    def load_changed(self, name: str) -> ServedModel:
        """Like refresh(), also for a model that was unloaded, and for versions that failed."""
        with self._changing:
            self._unloaded.discard(name)
            self._refresh.try_again(name)
            self._refresh_model(name, self.policy(name))
            if name not in self._table.models:
                raise ModelLoadError(f"model {name!r} is not in the repository")
            return self._table.models[name]

    def failed(self) -> dict[str, set[int]]:
        """By model: the versions that could not be loaded; none for a model whose folder could not be read."""
        unreadable = self.repository.unreadable
        failed = {
            model.name: {v.version for v in model.versions if v.state == "UNAVAILABLE" and not v.answers}
            for model in self._table.all()
        }
        return {name: versions for name, versions in failed.items() if versions or name in unreadable}

    def retry(self, name: str) -> None:
        """Loads the versions that failed once more, and leaves the others as they are."""
        with self._changing:
            failed = self.failed().get(name, set())
            found = self.repository.find_or_none(name)
            if found is not None:
                held = {v.version for v in found.versions} - failed if failed else set()
                self._refresh.try_again(name)
                self._refresh.apply(found, self.policy(name), held, retire=False)

    def _refresh_model(
        self, name: str, policy: Policy, held: Collection[int] = (), *, retire: bool = True
    ) -> None:
        served = self._table.models.get(name)
        found = self.repository.find_or_none(name)
        if found is not None and (found.versions or held):
            self._refresh.apply(found, policy, held, retire=retire)
        elif served is not None and retire:
            log.info("retired %s: it is no longer in the repository", name)
            self._remove(served)

    def _remove(self, served: ServedModel) -> None:
        self._refresh.remove(served)
        self.policies.canaries.pop(served.name, None)

    def failed_loads(self) -> dict[tuple[str, int], int]:
        """Counts since the start, by model and version, of models that are still served."""
        counted = self.on_demand.failed_loads.copy()
        return {key: n for key, n in counted.items() if key[0] in self._table.models}

    def _load_default(self, found: FoundModel) -> ServedModel:
        """Loads the default version; the others are loaded on demand. Takes room, which the caller gives back."""
        model = self._loader.not_loaded(found)
        default = model.default
        if default is None:
            return model
        assert default.spec is not None
        assert default.weights is not None
        policy = self.policy(found.name)
        self.on_demand.room.take(found.name, estimated_bytes(default.spec, default.precision, policy))
        loaded = self._loader.load_version(found.name, default.weights.found, policy)
        try:
            self.on_demand.room.take(found.name, loaded.memory_bytes)
        except ModelLoadError:
            self._table.release([loaded])  # never published
            raise
        return model.replaced(default, loaded)

    def want(self, name: str, version: int = 0, *, patiently: bool = False) -> Future[None]:
        """Loads a version on demand for a request; 0 is the default. The future is done when the routes have changed.
        `patiently`: the caller does not ask again every second."""
        try:
            return self.on_demand.want(name, self.find(name, version).version, patiently=patiently)
        except ModelNotFound:  # unloaded meanwhile, as the routes show
            done: Future[None] = Future()
            done.set_result(None)
            return done

    def stop_loading(self, max_wait_s: float | None = None) -> bool:
        """Starts no further load on demand, and waits for those that run. Returns whether all have ended."""
        return self.on_demand.stop(max_wait_s)

    def unload(self, name: str) -> None:
        """Requests accepted before are answered; later ones get NOT_FOUND."""
        with self._changing:
            self._remove(self.get(name))
            self._unloaded.add(name)
            self._ledger.unloaded(self._table.models)

    def policy(self, name: str) -> Policy:
        """The policy that a model of that name has, or would have once loaded."""
        return self.policies.of(name)

    @property
    def default_policy(self) -> Policy:
        return self.policies.now.default

    def set_policy(
        self, changes: Mapping[str, object], name: str = "", *, by: str = "the program"
    ) -> list[ServedModel]:
        return self.served(self.policies.set(changes, name, by=by))

    def served(self, names: Collection[str]) -> list[ServedModel]:
        """The models of these names that are still served."""
        return [model for name in names if (model := self._table.models.get(name)) is not None]

    def version_shadows(self) -> list[tuple[str, VersionShadow]]:
        """By model: the last comparison of two versions."""
        return sorted(self._table.version_shadows.copy().items())

    def models_with_canary(self) -> list[ServedModel]:
        names = self._table.models.copy() if self.default_policy.canary else self.policies.now.named
        found = (self._table.models.get(name) for name in names)
        return [model for model in found if model is not None and model.policy.canary is not None]

    def _start_referee(self) -> None:
        self.referee.start()

    def _settle(self, dispute: Dispute, verdict: Verdict, detail: str) -> None:
        """Acts on the referee's verdict about a batch, on its thread. The first verdict of a kind is logged; the first
        against fused withdraws it, if the policy says so."""
        shadow = dispute.shadow
        withdraw = False
        with self._table.lock:
            outdated = dispute.epoch != shadow.epoch  # the policy was set again while the referee judged
            first = shadow.record(Verdict.not_judged if outdated else verdict)
            version = self._table.owner(shadow)
            if outdated or not first or version is None:
                return
            model = self._table.models[version.model]
            if verdict is Verdict.fused_wrong and model.policy.on_mismatch == "unfused":
                withdraw = True
                self._table.publish({model.name: model.without_fused(version, detail)})
        label = f"{model.name}/{version.version}"
        if withdraw:
            log.error("%s: serving UNFUSED from now on, %s", label, detail)
            self._notify([model.name])
        elif verdict is Verdict.within_bound:
            log.info("%s: no mismatch, %s", label, detail)
        elif verdict is Verdict.int8_cost:
            log.warning("%s: %s", label, detail)
        else:
            log.error("%s: MISMATCH, serving as before: %s", label, detail)

    def _install(self, loaded: dict[str, ServedModel]) -> None:
        """Publish loaded models in place of those of the same names."""
        while True:
            with self._table.lock:
                # A policy may have changed since the model was loaded, and may need more kernels now.
                policies = {name: self.policy(name) for name in loaded}
                incomplete = [name for name, model in loaded.items() if model.lacks(policies[name])]
                if not incomplete:
                    old = [self._table.models[name] for name in loaded if name in self._table.models]
                    new = {name: model.under(policies[name]) for name, model in loaded.items()}
                    self._table.publish(new)
                    break
            for name in incomplete:
                have = loaded[name].versions
                size = sum(v.memory_bytes + bytes_to_build(v, policies[name]) for v in have)
                self.on_demand.room.take(name, size)
                versions = tuple(self._builder.complete(v, policies[name]) for v in loaded[name].versions)
                for before, after in zip(loaded[name].versions, versions, strict=True):
                    self._table.remove(before.lanes_without(after))
                loaded = loaded | {name: ServedModel(name, versions)}
        for model in old:
            self._table.release(model.versions)
        self._notify(loaded)

    def _notify(self, names: Collection[str]) -> None:
        self.unknown_names.log(names)
        for callback in self._on_change:
            callback(names)
