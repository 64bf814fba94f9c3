"""fused_mlp.v1.Admin: reads and changes policies and versions while the server runs, and takes traces. Served on a port
of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fused_mlp.kernels import KernelError
from fused_mlp.protos import admin_pb2 as pb
from fused_mlp.protos.variants import variant_number
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.errors import InvalidInput, Unsupported
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of
from fused_mlp.service.handlers import versions
from fused_mlp.service.observe.trace import check_trace, take_trace
from fused_mlp.service.reload.reloader import Reloader
from fused_mlp.service.settings.policy import Policy
from fused_mlp.service.variant import VARIANTS

ON_MISMATCH = {"log": pb.ON_MISMATCH_LOG, "unfused": pb.ON_MISMATCH_UNFUSED}
FIELDS = tuple(field.name for field in pb.PolicyChange.DESCRIPTOR.fields)
_NAMES: dict[str, dict[Any, str]] = {
    "variant": {variant_number(name): name for name in VARIANTS},
    "on_mismatch": {number: name for name, number in ON_MISMATCH.items()},
}


def rpcs(catalog: Catalog, reloader: Reloader) -> list[Rpc]:
    async def get_policy(request: Any, _: Call) -> Any:
        models = [catalog.get(request.model)] if request.model else catalog.models()
        return pb.GetPolicyResponse(defaults=_policy(catalog.default_policy), models=_models(models))

    async def set_policy(request: Any, _: Call) -> Any:
        try:
            # On a thread: kernels that the new policy needs are built first, and that may take seconds.
            changed = await asyncio.to_thread(catalog.set_policy, _changes(request.change), request.model)
        except KernelError as error:
            raise Unsupported(str(error)) from error
        return pb.SetPolicyResponse(defaults=_policy(catalog.default_policy), models=_models(changed))

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
    return changes


def _models(models: Iterable[ServedModel]) -> list[pb.ModelPolicy]:
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
        versions=policy.versions,
    )
