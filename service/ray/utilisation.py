# SPDX-License-Identifier: Apache-2.0
"""Reads a server's readiness and utilisation over HTTP. Runs in the replica's actor."""

from __future__ import annotations

import math
import re
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException

UTILIZATION, QUEUE_FILL = "fused_mlp_utilization", "fused_mlp_queue_fill"
TIMEOUT_S = 1.0
# These requests must not leave the node through a proxy of the environment.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Load:
    ready: bool
    busy: float = 0.0  # share of the server's cores
    queue_fill: float = 0.0

    def utilization(self, cpus: float) -> float:
        """For a replica with this many cores: its server counts whole ones."""
        return self.busy * math.ceil(cpus) / cpus + self.queue_fill


def read_load(metrics_url: str) -> Load:
    """A server that does not answer in time, or not with numbers, is not ready."""
    try:
        with _DIRECT.open(f"{metrics_url}/readyz", timeout=TIMEOUT_S):
            pass
        query = f"name[]={UTILIZATION}&name[]={QUEUE_FILL}"
        with _DIRECT.open(f"{metrics_url}/metrics?{query}", timeout=TIMEOUT_S) as response:
            text = response.read().decode()
        fill = _gauge(text, QUEUE_FILL)
        return Load(True, max(0.0, _gauge(text, UTILIZATION) - fill), fill)
    except (OSError, HTTPException, ValueError):  # HTTPError is an OSError: 503
        return Load(ready=False)


def _gauge(text: str, name: str) -> float:
    match = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(match[1]) if match else 0.0
