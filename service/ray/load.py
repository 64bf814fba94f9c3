"""What a server says of itself over HTTP: whether it is ready, and how busy it is. Runs in the replica's actor."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from dataclasses import dataclass

GAUGE = "fused_mlp_utilization"
TIMEOUT_S = 1.0
# What a server is asked about must not leave the node through somebody's proxy.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Load:
    ready: bool
    utilisation: float = 0.0


def read_load(metrics_url: str) -> Load:
    """A server that does not answer in time is not ready."""
    try:
        with _DIRECT.open(f"{metrics_url}/readyz", timeout=TIMEOUT_S):
            pass
        with _DIRECT.open(f"{metrics_url}/metrics?name[]={GAUGE}", timeout=TIMEOUT_S) as response:
            text = response.read().decode()
    except OSError:  # of which HTTPError is one: 503
        return Load(ready=False)
    match = re.search(rf"^{GAUGE} (\S+)$", text, re.MULTILINE)
    return Load(ready=True, utilisation=float(match[1]) if match else 0.0)
