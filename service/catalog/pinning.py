"""Which version answers requests that name none, as an operator says it: it is loaded first if need be, and the default
stays as it was if it cannot answer. Runs on a thread that loads."""

from __future__ import annotations

from fused_mlp.service.arm import LATEST
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.errors import InvalidInput

_END_CANARY: dict[str, object] = {"arms": {}, "canary": None}


def pin(catalog: Catalog, name: str, version: int, by: str = "") -> ServedModel:
    """0: the highest answers. `by`: who does it, for the history. Raises InvalidInput, ModelNotFound."""
    named = str(version or LATEST)
    catalog.refresh(name, policy=catalog.get(name).policy.changed({"version": named}))
    if catalog.find(name, version).on_demand:
        catalog.want(name, version, patiently=True).result()
    pinned = catalog.find(name, version)
    if pinned.answers:
        # A canary would go on taking requests from the version that is wanted.
        ended = _END_CANARY if catalog.policy(name).canary else {}
        catalog.set_policy({**ended, "version": named}, name, by=by)
    catalog.refresh(name)  # what only the pin kept goes
    if not pinned.answers:
        raise InvalidInput(f"model {name!r} version {version} cannot be pinned: {pinned.reason}")
    return catalog.get(name)


def roll_back(catalog: Catalog, name: str, by: str = "") -> ServedModel:
    """Takes back what was changed last: a canary that runs, else the default, for which the next lower version is
    pinned. Raises InvalidInput when there is none."""
    model = catalog.get(name)
    if model.policy.canary is not None:
        catalog.set_policy(_END_CANARY, name, by=by)
        return catalog.get(name)
    number = model.default.version if model.default else 0
    broken = {v.version for v in model.versions if not v.answers}
    usable = {v.version for v in catalog.repository.find(name).usable} - broken
    lower = [version for version in usable if version < number]
    if not lower:
        raise InvalidInput(f"model {name!r} has no version below {number} to go back to")
    return pin(catalog, name, max(lower), by)
