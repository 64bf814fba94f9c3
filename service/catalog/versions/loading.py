# SPDX-License-Identifier: Apache-2.0
"""Loads versions from the repository. A version that cannot be loaded says why. Runs on several threads at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from fused_mlp.kernels import KernelError
from fused_mlp.kernels.cores import usable_cores
from fused_mlp.models import ModelLoadError
from fused_mlp.models.errors import as_load_error
from fused_mlp.models.repository.repository import FoundModel, FoundVersion, Repository
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.catalog.stored_weights import StoredWeights, without_path
from fused_mlp.service.catalog.versions.building import KernelBuilder
from fused_mlp.service.policy.policy import Policy

log = logging.getLogger(__name__)

MAX_THREADS = 8  # half of a load holds the GIL
LOG_EVERY_S = 5.0


class Loader:
    """`release` gets versions that were loaded and will not be published."""

    def __init__(
        self,
        repository: Repository,
        builder: KernelBuilder,
        policy: Callable[[str], Policy],
        release: Callable[[Iterable[ServedVersion]], None],
    ) -> None:
        self._repository = repository
        self._builder = builder
        self._policy = policy
        self._release = release

    def load_all(self, found: list[FoundModel]) -> dict[str, ServedModel]:
        pool = ThreadPoolExecutor(min(MAX_THREADS, usable_cores(), len(found)), "load")
        loaded: dict[str, ServedModel] = {}
        log_at = time.monotonic() + LOG_EVERY_S
        try:
            for model in pool.map(self.load, found):
                loaded[model.name] = model
                if time.monotonic() >= log_at:
                    log_at = time.monotonic() + LOG_EVERY_S
                    log.info("loaded %d of %d models", len(loaded), len(found))
            return loaded
        finally:
            pool.shutdown(cancel_futures=True)

    def load(self, found: FoundModel) -> ServedModel:
        policy = self._policy(found.name)
        versions: dict[int, ServedVersion] = {}
        try:
            while missing := _selected(found, policy, versions.values()) - versions.keys():
                for version in (v for v in found.versions if v.version in missing):
                    versions[version.version] = self.load_version(found.name, version, policy)
        except BaseException:
            self._release(versions.values())  # they were never published
            raise
        return ServedModel(found.name, tuple(versions[number] for number in sorted(versions))).under(policy)

    def load_version(self, name: str, found: FoundVersion, policy: Policy) -> ServedVersion:
        """Raises KernelError if a kernel was asked for by name; the version has the reason of any other failure."""
        try:
            saved = self._repository.read(found)
            return self._builder.build(name, StoredWeights.of(self._repository, found, saved), saved, policy)
        except KernelError:
            raise
        except Exception as error:
            log.debug("%s/%d could not be loaded", name, found.version, exc_info=error)
            # Callers see the reason. It must not show where the repository is on this machine.
            reason = without_path(self._repository, as_load_error(error, found.path))
            return ServedVersion(name, found.version, "UNAVAILABLE", reason, signature=found.signature)

    def still_loading(self, found: FoundModel) -> ServedModel:
        policy = self._policy(found.name)
        wanted = _selected(found, policy)
        versions = (still_loading(found.name, v) for v in found.versions if v.version in wanted)
        return ServedModel(found.name, tuple(versions)).under(policy)

    def not_loaded(self, found: FoundModel) -> ServedModel:
        """The model with versions that the first request loads, or that say why they cannot be loaded."""
        policy = self._policy(found.name)
        wanted = _selected(found, policy)
        versions = (self.version_not_loaded(found.name, v) for v in found.versions if v.version in wanted)
        return ServedModel(found.name, tuple(versions)).under(policy)

    def version_not_loaded(self, name: str, found: FoundVersion) -> ServedVersion:
        if found.model_file is None:
            reason = without_path(self._repository, ModelLoadError(found.problem or ""))
            return ServedVersion(name, found.version, "UNAVAILABLE", reason, signature=found.signature)
        waiting = ServedVersion(
            name,
            found.version,
            "UNAVAILABLE",
            spec=found.spec,
            example=found.model_file.example_row,
            precision=found.model_file.precision,
            precision_error=found.model_file.error,
        )
        return on_demand(waiting, StoredWeights(self._repository, found))


def _selected(found: FoundModel, policy: Policy, loaded: Iterable[ServedVersion] = ()) -> set[int]:
    failed = {v.version for v in found.versions if v.problem is not None}
    failed |= {v.version for v in loaded if not v.answers}
    return policy.selected([v.version for v in found.versions], failed)


def still_loading(name: str, found: FoundVersion) -> ServedVersion:
    return ServedVersion(name, found.version, "LOADING", "still loading")


NOT_LOADED = "not loaded: the first request for it loads it"


def on_demand(version: ServedVersion, weights: StoredWeights) -> ServedVersion:
    """The same version, not loaded."""
    return ServedVersion(
        version.model,
        version.version,
        "UNAVAILABLE",
        NOT_LOADED,
        spec=version.spec,
        example=version.example,
        weights=weights,
        precision=version.precision,
        precision_error=version.precision_error,
        on_demand=True,
        signature=weights.found.signature,
    )
