"""What the handlers share, and the whole table of RPCs that are not predictions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of
from fused_mlp.service.handlers import health, open_inference
from fused_mlp.service.handlers import model_info as inference
from fused_mlp.service.observe.health import Health
from fused_mlp.service.settings.settings import Settings

SERVED_SERVICES = (
    "fused_mlp.v1.Inference",
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
)


@dataclass(frozen=True)
class Control:
    """What a handler may look at."""

    settings: Settings
    catalog: Catalog
    health: Health


def control_rpcs(control: Control) -> list[Rpc]:
    rpcs = [
        *health.rpcs(control.health, control.catalog),
        *inference.rpcs(control.catalog),
        *open_inference.rpcs(control.settings, control.catalog, control.health),
    ]
    if control.settings.reflection:
        rpcs += _reflection()
    return rpcs


def _reflection() -> list[Rpc]:
    service = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
    servicer = ReflectionServicer([*SERVED_SERVICES, service.full_name])

    def info(requests: AsyncIterator[Any], _: Call) -> AsyncIterator[Any]:
        responses: AsyncIterator[Any] = servicer.ServerReflectionInfo(requests, None)
        return responses

    return rpcs_of(service, {"ServerReflectionInfo": info})
