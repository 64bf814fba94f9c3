# SPDX-License-Identifier: Apache-2.0
"""Writes the addresses of the replicas to files: for Envoy (EDS), for Prometheus (file_sd), and for clients that
balance. Each file is replaced as a whole: Envoy reads a file when it is moved into its place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
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
    write_eds(folder, [endpoint.address for endpoint in endpoints])
    texts = {
        "prometheus.json": json.dumps(scrape_targets(fleet, endpoints), indent=1),
        "replicas.json": json.dumps([asdict(endpoint) for endpoint in endpoints], indent=1),
        "endpoints.txt": "".join(f"{endpoint.address}\n" for endpoint in endpoints),
    }
    for name, text in texts.items():
        _replace(folder / name, text)


def write_eds(folder: Path, addresses: Iterable[str]) -> None:
    """endpoints.yaml, which a running Envoy follows: a DiscoveryResponse. JSON is YAML, too."""
    document = {
        "resources": [
            {
                "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": CLUSTER,
                "endpoints": [{"lb_endpoints": [_lb_endpoint(address) for address in addresses]}],
            }
        ]
    }
    _replace(folder / "endpoints.yaml", json.dumps(document, indent=1))


def _lb_endpoint(address: str) -> dict[str, Any]:
    parts = urlsplit(f"//{address}")
    place = {"address": parts.hostname, "port_value": parts.port}
    return {"endpoint": {"address": {"socket_address": place}}}


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    os.replace(fresh, path)


def scrape_targets(fleet: str, endpoints: Sequence[Endpoint]) -> list[dict[str, Any]]:
    return [
        {
            "targets": [urlsplit(endpoint.metrics_url).netloc],
            "labels": {"fleet": fleet, "replica": endpoint.replica, "node": endpoint.node},
        }
        for endpoint in endpoints
    ]
