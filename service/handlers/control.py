# SPDX-License-Identifier: Apache-2.0
"""What the handlers share, and the whole table of RPCs that are not predictions."""

from __future__ import annotations

from dataclasses import dataclass, field

from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.fronts.rpc import Rpc
from fused_mlp.service.handlers import admin, health, open_inference, orca, reflection
from fused_mlp.service.handlers import model_info as inference
from fused_mlp.service.handlers.guard import Guard
from fused_mlp.service.observe.health import Health
from fused_mlp.service.observe.load import LoadMeter
from fused_mlp.service.reload.reloader import Reloader
from fused_mlp.service.settings.settings import Settings

SERVED_SERVICES = (
    "fused_mlp.v1.Inference",
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "xds.service.orca.v3.OpenRcaService",
)


@dataclass(frozen=True)
class Control:
    """What a handler may look at."""

    settings: Settings
    catalog: Catalog
    health: Health
    reloader: Reloader
    meter: LoadMeter
    guard: Guard = field(default_factory=Guard)


def control_rpcs(control: Control) -> list[Rpc]:
    rpcs = [
        *health.rpcs(control.health, control.catalog),
        *inference.rpcs(control.catalog),
        *open_inference.rpcs(
            control.settings, control.catalog, control.health, control.guard, control.reloader
        ),
        *orca.rpcs(control.meter),
    ]
    if control.settings.reflection:
        rpcs += reflection.rpcs(SERVED_SERVICES)
    return rpcs


def admin_rpcs(control: Control) -> list[Rpc]:
    """What is served too: an operator may reach no other port."""
    rpcs = [*admin.rpcs(control.catalog, control.reloader), *inference.rpcs(control.catalog)]
    return [control.guard.protect(rpc) for rpc in rpcs]
