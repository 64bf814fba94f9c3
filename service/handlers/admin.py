# SPDX-License-Identifier: Apache-2.0
"""fused_mlp.v1.Admin: reads and changes policies and versions while the server runs, and takes traces. Served on a port
of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

from fused_mlp.kernels import KernelError
from fused_mlp.protos import admin_pb2 as pb
from fused_mlp.protos.variants import variant_number
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.catalog.unknown_names import unknown_names
from fused_mlp.service.errors import InvalidInput, Unsupported
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of
from fused_mlp.service.handlers import versions
from fused_mlp.service.handlers.audited import caller_name
from fused_mlp.service.observe.trace import check_trace, take_trace
from fused_mlp.service.policy.policy import Policy
from fused_mlp.service.reload.reloader import Reloader
from fused_mlp.variant import VARIANTS

ON_MISMATCH = {"log": pb.ON_MISMATCH_LOG, "unfused": pb.ON_MISMATCH_UNFUSED}
ALL_FIELDS = "*"  # in unset
FIELDS = tuple(field.name for field in pb.PolicyChange.DESCRIPTOR.fields)
_NAMES: dict[str, dict[Any, str]] = {
    "variant": {variant_number(name): name for name in VARIANTS},
    "on_mismatch": {number: name for name, number in ON_MISMATCH.items()},
}


def rpcs(catalog: Catalog, reloader: Reloader) -> list[Rpc]:
    async def get_policy(request: Any, _: Call) -> Any:
        models = [catalog.get(request.model)] if request.model else catalog.models()
        history = [
            pb.PolicyChanged(time_s=each.at, by=each.by, model=each.model, what=each.what)
            for each in catalog.policies.history
            if request.model in ("", each.model) or not each.model
        ]
        unserved = [] if request.model else catalog.unknown_names.unserved(catalog.policies.now)
        return pb.GetPolicyResponse(
            defaults=_policy(catalog.default_policy),
            models=_models(catalog, models),
            history=history,
            unknown=unserved,
            not_kept=catalog.policies.problem,
        )

    async def set_policy(request: Any, call: Call) -> Any:
        change: Callable[[], Collection[str]]
        by = caller_name(call)
        if request.unset:
            if request.HasField("change"):
                raise InvalidInput("expected either change or unset, got both")
            change = partial(catalog.policies.unset, _unset(request.unset), request.model, by=by)
        else:
            changes = _changes(request.change)
            if changes.get("canary", request) is None:
                _check_canary_runs(catalog, request.model)
                changes.setdefault("arms", {})  # ends its share
            change = partial(catalog.policies.set, changes, request.model, by=by)
        try:
            # On a thread: building the kernels that the new policy needs may take seconds.
            changed = await asyncio.to_thread(change)
        except KernelError as error:
            raise Unsupported(str(error)) from error
        why_not = catalog.policies.not_kept
        return pb.SetPolicyResponse(
            defaults=_policy(catalog.default_policy),
            models=_models(catalog, catalog.served(changed)),
            kept=not why_not,
            not_kept=why_not,
        )

    async def trace(request: Any, _: Call) -> AsyncIterator[Any]:
        check_trace(request.seconds, request.spans_per_thread)
        for chunk in await take_trace(request.seconds, request.spans_per_thread):
            yield chunk

    service = pb.DESCRIPTOR.services_by_name["Admin"]
    policies = {"GetPolicy": get_policy, "SetPolicy": set_policy, "Trace": trace}
    return rpcs_of(service, {**policies, **versions.handlers(catalog, reloader)})


def _changes(change: pb.PolicyChange) -> dict[str, object]:
    """The fields that are set, under the names of Policy, which checks their values."""
    changes: dict[str, Any] = {name: getattr(change, name) for name in FIELDS if change.HasField(name)}
    if not changes:
        raise InvalidInput(f"change: expected at least one of {', '.join(FIELDS)}, got none")
    for name, names in _NAMES.items():
        if name in changes:
            changes[name] = names.get(changes[name], changes[name])
    if "arms" in changes:
        changes["arms"] = {each.arm: each.share for each in change.arms.shares}
    if "labels" in changes:
        changes["labels"] = dict(change.labels.versions)
    if "canary" in changes:
        changes["canary"] = _canary_plan(change.canary)
    return changes


def _check_canary_runs(catalog: Catalog, model: str) -> None:
    """Without a canary, a stop would delete shares that were set by hand."""
    if model:
        catalog.get(model)  # raises ModelNotFound
    if not catalog.policies.has_canary(model):
        of = f"of {model!r} " if model else ""
        hint = f"to end shares set by hand: fused-mlp policy set {f'{model} ' if model else ''}--no-arms"
        raise InvalidInput(f"no canary {of}runs: policy unchanged; {hint}")


def _unset(fields: Collection[str]) -> Collection[str]:
    return Policy.model_fields if set(fields) == {ALL_FIELDS} else fields


def _canary_plan(canary: pb.Canary) -> dict[str, object] | None:
    """Fields that were not given have the defaults of CanaryPlan."""
    if not canary.to:
        return None
    given = {field.name: value for field, value in canary.ListFields()}
    return {**given, "steps": tuple(canary.steps)} if canary.steps else given


def _models(catalog: Catalog, models: Iterable[ServedModel]) -> list[pb.ModelPolicy]:
    return [
        pb.ModelPolicy(
            model=model.name,
            policy=_policy(model.policy),
            default_version=model.default.version if model.default else 0,
            fallbacks=[
                pb.Fallback(version=v.version, reason=v.fallback.reason, detail=v.fallback.detail)
                for v in model.fallen_back
                if v.fallback
            ],
            canary=pb.CanaryStatus(**asdict(status))
            if (status := catalog.policies.canaries.get(model.name))
            else None,
            unknown=[f"{field}: {text}" for field, text in unknown_names(model)],
        )
        for model in models
    ]


def _policy(policy: Policy) -> pb.Policy:
    return pb.Policy(
        variant=variant_number(policy.variant),
        split=policy.split,
        allow_override=policy.allow_override,
        shadow=policy.shadow,
        on_mismatch=ON_MISMATCH[policy.on_mismatch],
        weight=policy.weight,
        precision=policy.precision,
        version=policy.version,
        shadow_arm=policy.shadow_arm,
        arms=pb.ArmShares(shares=[pb.ArmShare(arm=arm, share=share) for arm, share in policy.arms.items()]),
        labels=pb.Labels(versions=policy.labels),
        canary=pb.Canary(**policy.canary.model_dump()) if policy.canary else None,
        versions=policy.versions,
    )
