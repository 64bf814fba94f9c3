# SPDX-License-Identifier: Apache-2.0
"""Which version answers requests that name none, as an operator says it: it is loaded first if need be, and the default
stays as it was if it cannot answer. A version that is ready answers at once, whatever is being loaded; another one
needs a thread that loads."""

from __future__ import annotations

from fused_mlp.models import ModelLoadError
from fused_mlp.service.arm import LATEST
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.errors import InvalidInput

_END_CANARY: dict[str, object] = {"arms": {}, "canary": None}


def is_ready(catalog: Catalog, name: str, version: int) -> bool:
    """Whether pin() need not load; 0 is the highest."""
    model = catalog.get(name)
    wanted = model.named(str(version or LATEST))
    return wanted is not None and wanted.state == "READY"


def pin(catalog: Catalog, name: str, version: int, by: str = "the program") -> ServedModel:
    """0: the highest answers. `by`: who does it, for the history. Raises InvalidInput, ModelNotFound."""
    named = str(version or LATEST)
    # A canary would go on taking requests from the version that is wanted.
    ended = _END_CANARY if catalog.policy(name).canary else {}
    if not is_ready(catalog, name, version):
        policy = catalog.get(name).policy.changed({**ended, "version": named})
        catalog.refresh(name, policy=policy, retire=False)
        if catalog.find(name, version).on_demand:
            catalog.want(name, version, patiently=True).result()
    pinned = catalog.find(name, version)
    if not pinned.answers:
        catalog.retire_unchosen(name)  # it was loaded only to be pinned
        raise InvalidInput(f"model {name!r} version {version} cannot be pinned: {pinned.reason}")
    _set(catalog, {**ended, "version": named}, name, by)
    return catalog.get(name)


def version_below(catalog: Catalog, name: str) -> int:
    """That a rollback goes to. 0: a canary runs, which is taken back. Raises InvalidInput when there is none."""
    model = catalog.get(name)
    if model.policy.canary is not None:
        return 0
    number = model.default.version if model.default else 0
    broken = {v.version for v in model.versions if not v.answers}
    try:
        usable = {v.version for v in catalog.repository.find(name).usable} - broken
    except ModelLoadError:  # the repository is away: what is served can be had still
        usable = {v.version for v in model.answering}
    lower = [version for version in usable if version < number]
    if not lower:
        raise InvalidInput(f"model {name!r} has no version below {number} to go back to")
    return max(lower)


def roll_back(catalog: Catalog, name: str, by: str = "the program") -> ServedModel:
    """Takes back what was changed last: a canary that runs, else the default, for which the next lower version is
    pinned. Raises InvalidInput when there is none."""
    version = version_below(catalog, name)
    if version:
        return pin(catalog, name, version, by)
    _set(catalog, _END_CANARY, name, by)
    return catalog.get(name)


def _set(catalog: Catalog, changes: dict[str, object], name: str, by: str) -> None:
    """Also while the policy file cannot be used: going back must not wait until someone has mended it."""
    catalog.policies.set(changes, name, by=by, unkept=True)
