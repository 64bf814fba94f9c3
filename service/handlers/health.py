"""grpc.health.v1: Check, Watch and List, for the server ("") and for each model by name. A model whose
fused kernel cannot serve is healthy, answers unfused, and says so in the trailing metadata of Check."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fused_mlp.protos import health_pb2 as pb
from fused_mlp.service._engine import quote_name
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of
from fused_mlp.service.observe.health import SERVER, Health

# "digits/1 shadow_mismatch": once for each version.
FALLBACK_KEY = "fused-mlp-fallback"


def rpcs(health: Health, catalog: Catalog) -> list[Rpc]:
    async def check(request: Any, call: Call) -> Any:
        status = health.get(request.service)
        if status is None:
            raise ModelNotFound(quote_name(request.service))
        for model in catalog.models():
            if request.service in (SERVER, model.name):
                call.trailers.extend(
                    (FALLBACK_KEY, f"{v.model}/{v.version} {v.fallback.reason}")
                    for v in model.fallen_back
                    if v.fallback
                )
        return pb.HealthCheckResponse(status=status.name)

    async def watch(request: Any, _: Call) -> AsyncIterator[Any]:
        async for status in health.watch(request.service):
            yield pb.HealthCheckResponse(status=status.name)

    async def list_all(_request: Any, _: Call) -> Any:
        statuses = {name: pb.HealthCheckResponse(status=s.name) for name, s in health.all().items()}
        return pb.HealthListResponse(statuses=statuses)

    service = pb.DESCRIPTOR.services_by_name["Health"]
    return rpcs_of(service, {"Check": check, "Watch": watch, "List": list_all})
