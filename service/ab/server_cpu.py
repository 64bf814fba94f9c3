# SPDX-License-Identifier: Apache-2.0
"""CPU time per request on the server: process_cpu_seconds_total, read from its metrics port around each slice."""

from __future__ import annotations

import http.client
import re
import urllib.parse
import urllib.request
from dataclasses import dataclass

CALIBRATION_READS = 20
_CPU = re.compile(r"^process_cpu_seconds_total (\S+)", re.MULTILINE)
_BUILD = re.compile(r"^fused_mlp_build_info\{", re.MULTILINE)
# the metric does not exist before the first request
_REQUESTS = re.compile(r"^fused_mlp_requests_total\{.*\} (\S+)", re.MULTILINE)


class MetricsUnreadable(Exception):
    """The address does not serve this service's metrics. The text is one line."""


@dataclass(frozen=True)
class Reading:
    cpu_s: float
    requests: float


class ServerCpu:
    def __init__(self, url: str) -> None:
        """`url` ends before /metrics. Raises MetricsUnreadable."""
        names = ("process_cpu_seconds_total", "fused_mlp_build_info", "fused_mlp_requests_total")
        self._page = url.rstrip("/") + "/metrics"
        self._query = urllib.parse.urlencode([("name[]", name) for name in names])
        start = self.read()
        for _ in range(CALIBRATION_READS):
            self.first = self.read()
        # A scrape itself costs CPU time. Averaged over many, because the clock ticks in steps of 10 ms.
        self.per_read_s = (self.first.cpu_s - start.cpu_s) / CALIBRATION_READS

    def read(self) -> Reading:
        try:
            with urllib.request.urlopen(f"{self._page}?{self._query}", timeout=5) as response:
                text = response.read().decode()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise MetricsUnreadable(f"{self._page} cannot be read: {error}") from None
        cpu = _CPU.search(text)
        requests = _REQUESTS.findall(text)
        if cpu is None or not (requests or _BUILD.search(text)):
            raise MetricsUnreadable(f"{self._page} has no process_cpu_seconds_total of this service")
        return Reading(float(cpu[1]), sum(map(float, requests)))

    def between(self, before: Reading, after: Reading) -> float:
        """May be negative because of the clock's resolution. Only the sum over many slices is meaningful."""
        return after.cpu_s - before.cpu_s - self.per_read_s
