"""What a replica tells the controller of itself, twice a second."""

from __future__ import annotations

from dataclasses import dataclass

from fused_mlp.service.ray.deployment import Deployment


@dataclass(frozen=True)
class Report:
    """`deployment`: the newest that the controller has told of, for one that starts again; `generation`: this one's."""

    deployment: Deployment
    generation: int
    node: str
    address: str = ""  # empty: the server has not started yet
    metrics_url: str = ""
    pid: int = 0
    ready: bool = False
    leaving: bool = False
    utilisation: float = 0.0
