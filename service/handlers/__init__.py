# SPDX-License-Identifier: Apache-2.0
"""Every RPC but the predictions: the same handlers behind both fronts. They run on the asyncio loop."""

from fused_mlp.service.handlers.control import Control, admin_rpcs, control_rpcs
from fused_mlp.service.handlers.health import SERVED_SERVICES

__all__ = ["SERVED_SERVICES", "Control", "admin_rpcs", "control_rpcs"]
