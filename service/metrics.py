"""Prometheus: reads the engine's atomics when somebody scrapes. Nothing here runs per request, and labels come
only from what is loaded, never from what a client sent."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version as package_version
from typing import Any

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from service import _engine
from service.catalog import Catalog, ServedVersion
from service.errors import Code

LANE = ("model", "version", "variant")
NO_LANE = ("", "", "")  # requests that named no model we serve


class EngineCollector(Collector):
    def __init__(self, engine: _engine.Engine, catalog: Catalog, front: str) -> None:
        self._engine = engine
        self._catalog = catalog
        self._front = front

    def collect(self) -> Iterator[Metric]:
        versions = [v for model in self._catalog.models() for v in model.versions]
        lanes = [
            ((v.model, str(v.version), variant), lane.snapshot())
            for v in versions
            for variant, lane in v.lanes.items()
        ]
        yield from _histograms(lanes)
        yield from _counters(lanes, self._engine.unrouted())
        yield from _gauges(lanes)
        yield from _infos(versions, self._front)


def _histograms(lanes: list[tuple[tuple[str, str, str], Any]]) -> Iterator[Metric]:
    for name, text, attribute in (
        ("request_duration_seconds", "From the arrival of a request to its answer.", "request_duration"),
        ("queue_duration_seconds", "From the acceptance of a request to the start of its batch.", "queue_duration"),
        ("compute_duration_seconds", "The kernel call of one batch.", "compute_duration"),
        ("batch_rows", "Rows in one batch.", "batch_rows"),
    ):
        family = HistogramMetricFamily(f"fused_mlp_{name}", text, labels=LANE)
        for labels, snapshot in lanes:
            histogram = getattr(snapshot, attribute)
            family.add_metric(labels, _cumulative(histogram), histogram.sum)
        yield family


def _cumulative(histogram: _engine.HistogramSnapshot) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else format(bound, "g"), total))
    return buckets


def _counters(lanes: list[tuple[tuple[str, str, str], Any]], unrouted: Any) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "fused_mlp_requests", "Requests answered, by gRPC code.", labels=(*LANE, "code")
    )
    refused = CounterMetricFamily(
        "fused_mlp_refused", "Requests that never reached a kernel, by reason.", labels=(*LANE, "reason")
    )
    batches = CounterMetricFamily(
        "fused_mlp_batches", "Kernel calls, by what released the batch.", labels=(*LANE, "release")
    )
    rows = CounterMetricFamily("fused_mlp_rows", "Rows accepted.", labels=LANE)
    errors = CounterMetricFamily("fused_mlp_kernel_errors", "Batches whose kernel failed.", labels=LANE)
    for labels, snapshot in lanes:
        _add_codes(requests, labels, snapshot.codes)
        for reason, count in snapshot.refused.items():
            refused.add_metric((*labels, reason), count)
        for release, count in snapshot.batches.items():
            batches.add_metric((*labels, release), count)
        rows.add_metric(labels, snapshot.rows)
        errors.add_metric(labels, snapshot.kernel_errors)
    _add_codes(requests, NO_LANE, unrouted.codes)
    yield from (requests, refused, batches, rows, errors)


def _add_codes(family: CounterMetricFamily, labels: tuple[str, ...], codes: list[int]) -> None:
    """OK from the start, so that rates have a zero to begin with; other codes once they have been seen."""
    for code in Code:
        if codes[code] or (code is Code.OK and labels is not NO_LANE):
            family.add_metric((*labels, code.name), codes[code])


def _gauges(lanes: list[tuple[tuple[str, str, str], Any]]) -> Iterator[Metric]:
    queued = GaugeMetricFamily("fused_mlp_queue_rows", "Rows waiting now.", labels=LANE)
    capacity = GaugeMetricFamily("fused_mlp_queue_capacity_rows", "Rows that may wait.", labels=LANE)
    in_flight = GaugeMetricFamily("fused_mlp_in_flight", "Requests accepted and not yet answered.", labels=LANE)
    for labels, snapshot in lanes:
        queued.add_metric(labels, snapshot.queued_rows)
        capacity.add_metric(labels, snapshot.queue_capacity_rows)
        in_flight.add_metric(labels, snapshot.in_flight)
    yield from (queued, capacity, in_flight)


def _infos(versions: list[ServedVersion], front: str) -> Iterator[Metric]:
    models = GaugeMetricFamily(
        "fused_mlp_model_info",
        "Model versions; 1 when ready to serve.",
        labels=("model", "version", "shape", "dtype", "variant", "state"),
    )
    kernels = GaugeMetricFamily(
        "fused_mlp_kernel_info",
        "Loaded kernels.",
        labels=(*LANE, "backend", "device", "strategy", "isa", "dtype", "threads"),
    )
    for v in versions:
        shape = v.mlp.spec.summary() if v.mlp else ""
        dtype = v.mlp.spec.dtype if v.mlp else ""
        models.add_metric(
            (v.model, str(v.version), shape, dtype, v.variant, v.state), float(v.state == "READY")
        )
        for k in v.kernels:
            kernels.add_metric(
                (v.model, str(v.version), k.variant, k.backend, k.device, k.strategy, k.isa, k.dtype, str(k.threads)), 1
            )  # fmt: skip
    build = GaugeMetricFamily(
        "fused_mlp_build_info", "What runs.", labels=("version", "python", "torch", "front")
    )
    build.add_metric(
        (package_version("fused-mlp"), platform.python_version(), package_version("torch"), front), 1
    )
    yield from (models, kernels, build)


class Exposition:
    """The registry of this process, rendered for a scrape."""

    def __init__(self, collector: EngineCollector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
