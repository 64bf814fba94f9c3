"""What the handlers share, and the whole table of RPCs that are not predictions."""

from __future__ import annotations

from dataclasses import dataclass

from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.fronts.rpc import Rpc
from fused_mlp.service.handlers import health, open_inference, reflection
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
        rpcs += reflection.rpcs(SERVED_SERVICES)
    return rpcs
