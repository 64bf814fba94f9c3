# SPDX-License-Identifier: Apache-2.0
"""Where a front listens, what for, and the setting that says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Listen:
    host: str
    port: int
    purpose: str = "gRPC"
    setting: str = "FUSED_MLP_GRPC_PORT"
