# SPDX-License-Identifier: Apache-2.0
"""A scrape beside metrics that cannot be read: the others are told."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.core import Metric

from fused_mlp.service.observe.scrape import model_metrics
from fused_mlp.service.observe.scrape.exposition import Gauge
from fused_mlp.service.observe.scrape.metrics import FrontCollector
from fused_mlp.service.observe.scrape.reading import Scrape
from tests.support.puppet import PuppetService


def test_metrics_that_cannot_be_read_are_missing_and_the_others_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(_: Scrape) -> Iterator[tuple[str, float]]:
        yield 'model="m"', 1.0
        raise RuntimeError("a model of no shape")

    def collect(_: FrontCollector) -> Iterator[Metric]:
        raise RuntimeError("no front")

    broken = Gauge("fused_mlp_broken", "Cannot be read.", read)
    monkeypatch.setattr(model_metrics, "FAMILIES", (broken, *model_metrics.FAMILIES))
    monkeypatch.setattr(FrontCollector, "collect", collect)
    with PuppetService() as puppet:
        url = f"http://127.0.0.1:{puppet.service.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as page:
            text = page.read().decode()
    assert "fused_mlp_model_info{" in text
    assert "process_start_time_seconds" in text
    assert "fused_mlp_broken{" not in text
    assert "fused_mlp_broken could not be read" in caplog.text
    assert "FrontCollector failed" in caplog.text
