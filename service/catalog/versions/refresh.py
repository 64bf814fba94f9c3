# SPDX-License-Identifier: Apache-2.0
"""Brings what is served of a model to what the repository holds now, version by version. What has not changed keeps its
lanes and counters; a version that cannot be served is reported and takes no traffic. Runs on a thread that loads, under
the catalog's lock on changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from fused_mlp.kernels import KernelError
from fused_mlp.models import ModelLoadError
from fused_mlp.models.repository.repository import FoundModel, FoundVersion
from fused_mlp.service.catalog.ledger import Ledger
from fused_mlp.service.catalog.records import ServedModel, ServedVersion, other_inputs
from fused_mlp.service.catalog.table import ModelTable
from fused_mlp.service.catalog.versions.building import KernelBuilder
from fused_mlp.service.catalog.versions.loading import Loader, still_loading
from fused_mlp.service.catalog.versions.on_demand import OnDemand
from fused_mlp.service.catalog.versions.room import Key, estimated_bytes
from fused_mlp.service.policy.arm import LATEST
from fused_mlp.service.policy.policy import Policy

log = logging.getLogger(__name__)


class Refresh:
    """`policy`: of a model by its name. `notify`: gets the names of models that have changed."""

    def __init__(
        self,
        table: ModelTable,
        loader: Loader,
        builder: KernelBuilder,
        on_demand: OnDemand,
        ledger: Ledger,
        *,
        policy: Callable[[str], Policy],
        notify: Callable[[Collection[str]], None],
        lazy: bool,
    ) -> None:
        self._table = table
        self._loader = loader
        self._builder = builder
        self._on_demand = on_demand
        self._ledger = ledger
        self._policy = policy
        self._notify = notify
        self._lazy = lazy

    def apply(
        self, found: FoundModel, policy: Policy, held: Collection[int] = (), *, retire: bool = True
    ) -> None:
        """Loads new and changed versions that `policy` selects: the default first, then the highest. If `retire`, then
        drops versions that are gone or not selected. `held`: versions that are still being written stay as they are."""
        name = found.name
        while True:
            served = self._table.models.get(name)
            current = {v.version: v for v in served.versions} if served else {}
            there = [v for v in found.versions if v.version in current or v.version not in held]
            same = {
                v.version for v in there if v.version in held or _is_same(current.get(v.version), v.signature)
            }
            failed = [n for n in same if not current[n].answers and current[n].state != "LOADING"]
            wanted = policy.selected([v.version for v in there], failed)
            missing = [v for v in there if v.version in wanted and v.version not in same]
            if not missing:
                break
            default = _default(found, policy, failed)
            if default in held and policy.version != LATEST and not (served and served.answering):
                # Another version must not answer in its place until it is complete, or gone.
                self._put_loading(name, next(v for v in found.versions if v.version == default))
                return
            chosen = next((v for v in missing if v.version == default), missing[-1])
            self._load(name, chosen, current.get(chosen.version))
        gone = [v for number, v in current.items() if number not in wanted]
        if gone and retire and served is not None:
            self._retire(served, gone)

    def retire_unchosen(self, name: str, policy: Policy) -> None:
        """Drops served versions that the policy no longer selects. Does not read the repository."""
        served = self._table.models.get(name)
        if served is not None:
            numbers = [v.version for v in served.versions]
            wanted = policy.selected(numbers, [v.version for v in served.versions if not v.answers])
            if gone := [v for v in served.versions if v.version not in wanted]:
                self._retire(served, gone)

    def try_again(self, name: str) -> None:
        """The next apply() loads versions that failed, whether or not their files have changed."""
        with self._table.lock:
            model = self._table.models.get(name)
            for version in model.versions if model else ():
                if version.state == "UNAVAILABLE" and not version.answers:
                    self._table.replace(version, replace(version, signature=()))

    def remove(self, model: ServedModel) -> None:
        with self._table.lock:
            self._table.publish({}, removed=[model.name])
        self._release(model.versions)
        self._on_demand.forget(model.name)
        self._notify([model.name])

    def _retire(self, served: ServedModel, gone: list[ServedVersion]) -> None:
        """Accepted requests are answered first."""
        numbers = {v.version for v in gone}
        with self._table.lock:
            model = self._table.models[served.name]
            gone = [
                v for v in model.versions if v.version in numbers
            ]  # loads on demand may have replaced them
            left = tuple(v for v in model.versions if v.version not in numbers)
            if left:
                self._table.publish({model.name: replace(model, versions=left)})
            else:
                self._table.publish({}, removed=[model.name])
        self._release(gone)
        self._ledger.keep_versions(served.name, [v.version for v in left])
        log.info("retired %s", ", ".join(f"{v.model}/{v.version}" for v in gone))
        self._notify([served.name])

    def _release(self, gone: Collection[ServedVersion]) -> None:
        self._table.release(gone)
        for v in gone:
            self._on_demand.failed_loads.pop((v.model, v.version), None)

    def _load(self, name: str, found: FoundVersion, before: ServedVersion | None) -> None:
        """Publishes a version with the signature of `found`, loaded or failed."""
        if before is None or not before.answers:
            self._put_loading(name, found)
        key = name, found.version
        try:
            if self._waits_for_a_request(name, found):
                built = self._loader.version_not_loaded(name, found)
            else:
                built = self._build(name, found)
            if not built.answers:
                raise ModelLoadError(built.reason)
            self._publish(built)
        except Exception as error:
            self._report_failure(key, found, error, before)
            return
        finally:
            self._on_demand.room.give_back(key)
        self._on_demand.forget(name)
        if built.state == "READY" and built.spec is not None:
            log.info("loaded %s/%d (%s)", name, found.version, built.spec.summary())
        self._notify([name])
        self._on_demand.on_loaded()

    def _put_loading(self, name: str, found: FoundVersion) -> None:
        with self._table.lock:
            self._put(replace(still_loading(name, found), signature=found.signature))
        self._notify([name])

    def _waits_for_a_request(self, name: str, found: FoundVersion) -> bool:
        """Where models are loaded on demand, only the successor of a default that is in use is loaded at once: were it
        broken, requests for it would fail."""
        model = self._table.models.get(name)
        default = model.default if model else None
        in_use = default is not None and default.state == "READY" and found.version >= default.version
        return self._lazy and not in_use

    def _build(self, name: str, found: FoundVersion) -> ServedVersion:
        policy = self._policy(name)
        if self._lazy and found.model_file is not None:
            size = estimated_bytes(found.model_file.spec, found.model_file.precision, policy)
            self._on_demand.room.take((name, found.version), size)
        return self._loader.load_version(name, found, policy)

    def _publish(self, built: ServedVersion) -> None:
        served = self._table.models.get(built.model)
        answered = served.default if served else None
        while True:
            with self._table.lock:
                # It may have changed since the version was loaded, and may need more kernels now.
                policy = self._policy(built.model)
                if not built.lacks(policy):
                    old = self._put(built)
                    break
            try:
                completed = self._builder.complete(built, policy)
            except BaseException:
                self._table.release([built])  # it was never published
                raise
            self._table.remove(built.lanes_without(completed))
            built = completed
        if old is not None:
            self._table.release([old])
        _warn_of_other_inputs(answered, self._table.models[built.model].default)

    def _report_failure(
        self, key: Key, found: FoundVersion, error: Exception, before: ServedVersion | None
    ) -> None:
        name, version = key
        self._on_demand.failed_loads[key] += 1
        reason = str(error)
        if not isinstance(error, (ModelLoadError, KernelError)):
            reason = "internal error"
            log.error("%s/%d could not be loaded", name, version, exc_info=error)
        with self._table.lock:
            model = self._table.models[name]
            current = next((v for v in model.versions if v.version == version), None)
            if before is not None and current is not None and current.answers:
                log.error(
                    "%s/%d: keeping the current files, the new ones cannot be used: %s", name, version, reason
                )
                updated = replace(current, reason=f"its new files cannot be used: {reason}")
                self._put(replace(updated, signature=found.signature))
            else:
                if before is None or before.reason != reason:  # logged once
                    log.error("%s/%d is not served: %s", name, version, reason)
                failed = ServedVersion(name, version, "UNAVAILABLE", reason, signature=found.signature)
                self._put(failed)
        self._notify([name])

    def _put(self, version: ServedVersion) -> ServedVersion | None:
        """Under the table's lock. Returns the version of that number that it replaces."""
        name = version.model
        policy = self._policy(name)
        model = self._table.models.get(name) or ServedModel(name, (), policy)
        old = next((v for v in model.versions if v.version == version.version), None)
        self._table.publish({name: model.with_version(version).under(policy)})
        return old


def _default(found: FoundModel, policy: Policy, failed: Collection[int]) -> int:
    """The version that answers by default once all that can be loaded are; 0: none."""
    wanted = policy.selected([v.version for v in found.versions], failed) - set(failed)
    ready = tuple(ServedVersion(found.name, number, "READY") for number in sorted(wanted))
    default = ServedModel(found.name, ready, policy).default
    return default.version if default else 0


def _is_same(served: ServedVersion | None, signature: object) -> bool:
    return served is not None and served.signature == signature and served.state != "LOADING"


def _warn_of_other_inputs(before: ServedVersion | None, after: ServedVersion | None) -> None:
    """Warns about a new default that takes other inputs than the one before, which callers notice by errors."""
    if before is None or after is None or not before.spec or not after.spec:
        return
    problem = other_inputs(after, before)
    if problem and before.version != after.version:
        log.warning(
            "%s/%d answers from now on and %s: callers must change their requests",
            after.model,
            after.version,
            problem.removeprefix("it "),
        )
