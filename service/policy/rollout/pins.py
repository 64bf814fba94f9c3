# SPDX-License-Identifier: Apache-2.0
"""Pins and rollbacks: which version answers requests that name none. A version that is not ready is loaded first, on a
thread that loads; the default stays if it cannot answer. A version that is ready answers at once, even during loads."""

from __future__ import annotations

from fused_mlp.models import ModelLoadError
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.policy.arm import LATEST

END_CANARY: dict[str, object] = {"arms": {}, "canary": None}


def is_ready(catalog: Catalog, name: str, version: int) -> bool:
    """Whether pin() need not load the version; 0 is the highest."""
    wanted = catalog.get(name).named(str(version or LATEST))
    return wanted is not None and wanted.state == "READY"


def pin(catalog: Catalog, name: str, version: int, by: str = "the program") -> ServedModel:
    """Makes a version the default (0: the highest), and ends a canary, which would go on taking requests from it.
    `by`: who does it, for the history. Raises InvalidInput, ModelNotFound, Unsupported."""
    ended = END_CANARY if catalog.policy(name).canary else {}
    changes = {**ended, "version": str(version or LATEST)}
    loads = not is_ready(catalog, name, version)
    try:
        if loads:
            catalog.refresh(name, policy=catalog.get(name).policy.changed(changes), retire=False)
            if catalog.find(name, version).on_demand:
                catalog.want(name, version, patiently=True).result()
        pinned = catalog.find(name, version)
        if not pinned.answers:
            raise InvalidInput(f"model {name!r} version {version} cannot be pinned: {pinned.reason}")
        catalog.policies.set(changes, name, by=by)
    except Exception:
        if loads:
            catalog.retire_unchosen(name)
        raise
    return catalog.get(name)


def version_below(catalog: Catalog, name: str) -> int:
    """The version that a rollback goes to; 0: the rollback ends a canary. Raises InvalidInput if there is none."""
    model = catalog.get(name)
    if model.policy.canary is not None:
        return 0
    number = model.default.version if model.default else 0
    broken = {v.version for v in model.versions if not v.answers}
    try:
        usable = {v.version for v in catalog.repository.find(name).usable} - broken
    except ModelLoadError:  # the repository is away: versions that are served still answer
        usable = {v.version for v in model.answering}
    lower = [version for version in usable if version < number]
    if not lower:
        raise InvalidInput(f"model {name!r} has no version below {number} to go back to")
    return max(lower)


def roll_back(catalog: Catalog, name: str, by: str = "the program") -> ServedModel:
    """Undoes the last change: ends a canary, or pins the next lower version. Raises InvalidInput if there is none."""
    if version := version_below(catalog, name):
        return pin(catalog, name, version, by)
    catalog.policies.set(END_CANARY, name, by=by)
    return catalog.get(name)
