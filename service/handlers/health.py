# SPDX-License-Identifier: Apache-2.0
"""grpc.health.v1: Check, Watch and List, for the server ("") and for each model by name. A model whose
fused kernel cannot serve is healthy, answers unfused, and says so in the trailing metadata of Check, as it says which
versions could not be loaded. The native front
answers Check by itself, with what check_answers() says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fused_mlp.protos import health_pb2 as pb
from fused_mlp.service._engine import quote_name
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.fronts.rpc import Call, CheckAnswer, Rpc, rpcs_of
from fused_mlp.service.observe.health import SERVER, Health

# "digits/1 shadow_mismatch": once for each version.
FALLBACK_KEY = "fused-mlp-fallback"
# "digits/4": once for each version that could not be loaded.
UNAVAILABLE_KEY = "fused-mlp-unavailable"
# "2": once for each repository of which something cannot be read or fetched, by its place in the setting.
REPOSITORY_KEY = "fused-mlp-repository-problem"
MOST_UNAVAILABLE = 10  # told of the whole server: a trailer is read by many

Trailers = list[tuple[str, str]]


def check_answers(health: Health, catalog: Catalog) -> list[CheckAnswer]:
    """What Check answers, for each name: status and trailers."""
    trailers = _trailers(catalog)
    return [(name, int(status), trailers.get(name, [])) for name, status in health.all().items()]


def _trailers(catalog: Catalog) -> dict[str, Trailers]:
    """By name; the server has those of all models."""
    found: dict[str, Trailers] = {SERVER: []}
    unavailable: Trailers = []
    for model in catalog.models():
        versions = [(v, v.fallback) for v in model.fallen_back if v.fallback]
        found[model.name] = [(FALLBACK_KEY, f"{v.model}/{v.version} {why.reason}") for v, why in versions]
        found[SERVER] += found[model.name]
        broken = [
            (UNAVAILABLE_KEY, f"{v.model}/{v.version}")
            for v in model.versions
            if v.state == "UNAVAILABLE" and not v.answers
        ]
        found[model.name] += broken
        unavailable += broken
    found[SERVER] += unavailable[:MOST_UNAVAILABLE]
    parts = enumerate(catalog.repository.parts, 1)
    found[SERVER] += [(REPOSITORY_KEY, str(number)) for number, part in parts if part.problems]
    return found


def rpcs(health: Health, catalog: Catalog) -> list[Rpc]:
    async def check(request: Any, call: Call) -> Any:
        status = health.get(request.service)
        if status is None:
            raise ModelNotFound(quote_name(request.service))
        call.trailers.extend(_trailers(catalog).get(request.service, []))
        return pb.HealthCheckResponse(status=status.name)

    async def watch(request: Any, _: Call) -> AsyncIterator[Any]:
        async for status in health.watch(request.service):
            yield pb.HealthCheckResponse(status=status.name)

    async def list_all(_request: Any, _: Call) -> Any:
        statuses = {name: pb.HealthCheckResponse(status=s.name) for name, s in health.all().items()}
        return pb.HealthListResponse(statuses=statuses)

    service = pb.DESCRIPTOR.services_by_name["Health"]
    return rpcs_of(service, {"Check": check, "Watch": watch, "List": list_all})
