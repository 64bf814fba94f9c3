# SPDX-License-Identifier: Apache-2.0
"""The part of Prometheus' HTTP API that a report needs: instant queries, and range queries as arrays over time."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

import numpy as np

from fused_mlp.service.ab.bootstrap import Array

Labels = dict[str, str]


class PrometheusError(Exception):
    """Prometheus cannot be reached, or refuses the query. The text is one line."""


@dataclass(frozen=True)
class Prometheus:
    """`start`, `end` and `step_s` apply to every range query. A step without a sample counts as 0."""

    url: str
    start: float
    end: float
    step_s: float

    @property
    def steps(self) -> int:
        return round((self.end - self.start) / self.step_s) + 1

    def range(self, query: str) -> list[tuple[Labels, Array]]:
        found = self._ask(
            "query_range", query=query, start=str(self.start), end=str(self.end), step=str(self.step_s)
        )
        return [(series["metric"], self._values(series["values"])) for series in found]

    def instant(self, query: str) -> list[tuple[Labels, float]]:
        found = self._ask("query", query=query, time=str(self.end))
        return [(series["metric"], float(series["value"][1])) for series in found]

    def sample_times(self, series: str, window: str) -> list[float]:
        """The times of the series' samples in the window before `end`."""
        found = self._ask("query", query=f"{series}[{window}]", time=str(self.end))
        return [float(at) for at, _ in found[0]["values"]] if found else []

    def _values(self, samples: list[tuple[float, str]]) -> Array:
        values = np.zeros(self.steps)
        for at, text in samples:
            value = float(text)
            values[round((at - self.start) / self.step_s)] = value if np.isfinite(value) else 0.0
        return values

    def _ask(self, path: str, **parameters: str) -> Any:
        url = f"{self.url.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise PrometheusError(f"{self.url} refused a query: {error.read().decode()[:200]}") from None
        except (OSError, ValueError) as error:
            raise PrometheusError(f"{self.url} does not answer as a Prometheus: {error}") from None
        return answer["data"]["result"]
