"""Where the replicas of a fleet are, as files: for Envoy (EDS), for Prometheus (file_sd), and for clients that balance
by themselves. Each file is replaced as a whole: Envoy reads a file when it is moved into its place."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CLUSTER = "fused-mlp"  # its name in deploy/envoy/envoy.yaml


@dataclass(frozen=True)
class Endpoint:
    address: str  # host:port of gRPC
    metrics_url: str
    replica: str
    node: str


def write_endpoints(folder: Path, fleet: str, endpoints: Sequence[Endpoint]) -> None:
    """endpoints.yaml, prometheus.json, replicas.json, and endpoints.txt with an address per line."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "endpoints.yaml": json.dumps(eds(endpoints), indent=1),
        "prometheus.json": json.dumps(scrape_targets(fleet, endpoints), indent=1),
        "replicas.json": json.dumps([asdict(endpoint) for endpoint in endpoints], indent=1),
        "endpoints.txt": "".join(f"{endpoint.address}\n" for endpoint in endpoints),
    }
    for name, text in texts.items():
        fresh = folder / f".{name}.new"
        fresh.write_text(text)
        os.replace(fresh, folder / name)


def eds(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """A DiscoveryResponse as Envoy reads it from a file; JSON is YAML, too."""
    return {
        "resources": [
            {
                "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": CLUSTER,
                "endpoints": [{"lb_endpoints": [_lb_endpoint(endpoint) for endpoint in endpoints]}],
            }
        ]
    }


def _lb_endpoint(endpoint: Endpoint) -> dict[str, Any]:
    parts = urlsplit(f"//{endpoint.address}")
    address = {"address": parts.hostname, "port_value": parts.port}
    return {"endpoint": {"address": {"socket_address": address}}}


def scrape_targets(fleet: str, endpoints: Sequence[Endpoint]) -> list[dict[str, Any]]:
    return [
        {
            "targets": [urlsplit(endpoint.metrics_url).netloc],
            "labels": {"fleet": fleet, "replica": endpoint.replica, "node": endpoint.node},
        }
        for endpoint in endpoints
    ]
