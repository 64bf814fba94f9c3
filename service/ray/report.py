# SPDX-License-Identifier: Apache-2.0
"""What a replica tells the controller of itself, twice a second."""

from __future__ import annotations

from dataclasses import dataclass

from fused_mlp.service.ray.deployment import Deployment


@dataclass(frozen=True)
class Report:
    """`deployment` and `settled`: the newest that the controller has told of, and the last that all replicas had, for
    one that starts again; `generation`: this one's."""

    deployment: Deployment
    settled: Deployment
    generation: int
    node: str
    address: str = ""  # empty: the server has not started yet
    metrics_url: str = ""
    pid: int = 0
    ready: bool = False
    leaving: bool = False
    utilization: float = 0.0
