# SPDX-License-Identifier: Apache-2.0
"""The state that handlers share, and the table of all RPCs except predictions."""

from __future__ import annotations

from dataclasses import dataclass, field

from fused_mlp.service._engine import Action
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.fronts.rpc import Rpc
from fused_mlp.service.handlers import admin, health, open_inference, orca, reflection
from fused_mlp.service.handlers import model_info as inference
from fused_mlp.service.handlers.guard import Guard
from fused_mlp.service.handlers.health import SERVED_SERVICES, Health
from fused_mlp.service.observe.utilisation import LoadMeter
from fused_mlp.service.reload.reloader import Reloader
from fused_mlp.service.settings.settings import Settings


@dataclass(frozen=True)
class Control:
    """The state that handlers may use."""

    settings: Settings
    catalog: Catalog
    health: Health
    reloader: Reloader
    meter: LoadMeter
    guard: Guard = field(default_factory=Guard)


def control_rpcs(control: Control) -> list[Rpc]:
    rpcs = [
        *health.rpcs(control.health, control.catalog, control.guard),
        *inference.rpcs(control.catalog, control.guard),
        *open_inference.rpcs(
            control.settings, control.catalog, control.health, control.guard, control.reloader
        ),
        *orca.rpcs(control.meter, control.guard),
    ]
    if control.settings.reflection:
        rpcs += reflection.rpcs(SERVED_SERVICES)
    return rpcs


def admin_rpcs(control: Control) -> list[Rpc]:
    """Describes models too: an operator may reach no other port."""
    rpcs = [*admin.rpcs(control.catalog, control.reloader), *inference.rpcs(control.catalog, Guard())]
    return [control.guard.protect(rpc, Action.admin) for rpc in rpcs]
