"""Prometheus: reads the engine's atomics at each scrape. Nothing here runs per request, and labels come
only from what is loaded, never from what a client sent. A model has one series until it has counted something: most of
ten thousand models have nothing to tell."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from fused_mlp.service import _engine
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import REASONS, ServedModel, ServedVersion
from fused_mlp.service.errors import Code

if TYPE_CHECKING:
    from fused_mlp.service import _front
    from fused_mlp.service.access.credentials import ServerCredentials

LANE = ("model", "version", "variant")
VERSION = ("model", "version")
NO_LANE = ("", "", "")  # requests that named no model we serve
# With which the native front itself ends calls. Shown from the start, so that rates have a zero to begin with.
FRONT_CODES = (
    Code.INVALID_ARGUMENT,
    Code.DEADLINE_EXCEEDED,
    Code.RESOURCE_EXHAUSTED,
    Code.UNIMPLEMENTED,
    Code.INTERNAL,
    Code.UNAVAILABLE,
)


@dataclass(frozen=True)
class LaneSample:
    labels: tuple[str, str, str]
    counters: _engine.LaneSnapshot
    queue_rows: int


class EngineCollector(Collector):
    def __init__(self, engine: _engine.Engine, catalog: Catalog, front: str) -> None:
        self._engine = engine
        self._catalog = catalog
        self._front = front

    def collect(self) -> Iterator[Metric]:
        models = self._catalog.models()
        versions = [v for model in models for v in model.versions]
        used = [v for v in versions if any(lane.used for lane in v.lanes.values())]
        lanes = [
            LaneSample((v.model, str(v.version), variant), lane.snapshot(), lane.queue_rows)
            for v in used
            for variant, lane in v.lanes.items()
            if lane.used
        ]
        yield from _histograms(lanes)
        yield from _counters(lanes, self._engine.unrouted())
        yield from _gauges(lanes)
        yield from _infos(versions, used, self._front)
        yield from _shadows(used)
        names = {v.model for v in used}
        default = self._catalog.default_policy
        told = [
            model
            for model in models
            if model.name in names or not (model.policy is default or model.policy == default)
        ]
        yield from _policies(told)
        yield _fallbacks(models, names)


def _histograms(lanes: list[LaneSample]) -> Iterator[Metric]:
    seconds = [bound / 1e9 for bound in _engine.DURATION_BOUNDS_NS]
    rows = [float(bound) for bound in _engine.ROW_BOUNDS]
    for name, text, attribute, bounds, unit in (
        (
            "request_duration_seconds",
            "From a request's arrival to its answer.",
            "requests.duration",
            seconds,
            1e9,
        ),
        (
            "queue_duration_seconds",
            "From acceptance to the start of the batch.",
            "queue_duration",
            seconds,
            1e9,
        ),
        ("compute_duration_seconds", "The kernel call of one batch.", "compute_duration", seconds, 1e9),
        ("batch_rows", "Rows in one batch.", "batch_rows", rows, 1),
    ):
        read = attrgetter(attribute)
        family = HistogramMetricFamily(f"fused_mlp_{name}", text, labels=LANE)
        for lane in lanes:
            histogram = read(lane.counters)
            family.add_metric(lane.labels, _cumulative(bounds, histogram.buckets), histogram.sum / unit)
        yield family


def _cumulative(bounds: list[float], counts: list[int]) -> list[tuple[str, float]]:
    names = [*(format(bound, "g") for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))


def _counters(lanes: list[LaneSample], unrouted: _engine.RequestSnapshot) -> Iterator[Metric]:
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
    for lane in lanes:
        _add_codes(requests, lane.labels, lane.counters.requests.codes)
        for reason, count in lane.counters.refused.items():
            refused.add_metric((*lane.labels, reason), count)
        for release, count in lane.counters.batches.items():
            batches.add_metric((*lane.labels, release), count)
        rows.add_metric(lane.labels, lane.counters.rows)
        errors.add_metric(lane.labels, lane.counters.kernel_errors)
    _add_codes(requests, NO_LANE, unrouted.codes)
    yield from (requests, refused, batches, rows, errors)


def _add_codes(family: CounterMetricFamily, labels: tuple[str, ...], codes: dict[int, int]) -> None:
    """Of a lane OK in any case, so that rates have a zero to begin with; other codes once they have been seen."""
    if labels is not NO_LANE:
        codes = {Code.OK: 0, **codes}
    for code, count in codes.items():
        family.add_metric((*labels, Code(code).name), count)


def _gauges(lanes: list[LaneSample]) -> Iterator[Metric]:
    queued = GaugeMetricFamily("fused_mlp_queue_rows", "Rows waiting now.", labels=LANE)
    capacity = GaugeMetricFamily("fused_mlp_queue_capacity_rows", "Rows that may wait.", labels=LANE)
    in_flight = GaugeMetricFamily(
        "fused_mlp_in_flight", "Requests accepted and not yet answered.", labels=LANE
    )
    for lane in lanes:
        queued.add_metric(lane.labels, lane.counters.queued_rows)
        capacity.add_metric(lane.labels, lane.queue_rows)
        in_flight.add_metric(lane.labels, lane.counters.in_flight)
    yield from (queued, capacity, in_flight)


def _infos(versions: list[ServedVersion], used: list[ServedVersion], front: str) -> Iterator[Metric]:
    """The first is all that there is of a version without traffic, and short for that reason."""
    models = GaugeMetricFamily(
        "fused_mlp_model_info",
        "Model versions; 1 when they can answer.",
        labels=(*VERSION, "state"),
    )
    for v in versions:
        models.add_metric((v.model, str(v.version), v.state), int(v.answers))
    kernels = GaugeMetricFamily(
        "fused_mlp_kernel_info",
        "Kernels of versions with traffic.",
        labels=(*LANE, "shape", "backend", "device", "strategy", "isa", "dtype", "threads"),
    )
    for v in used:
        shape = v.spec.summary() if v.spec else ""
        for k in v.kernels:
            kernels.add_metric(
                (v.model, str(v.version), k.variant, shape,
                 k.backend, k.device, k.strategy, k.isa, k.dtype, str(k.threads)),
                1,
            )  # fmt: skip
    errors = GaugeMetricFamily(
        "fused_mlp_precision_error_ratio",
        "What weights in fewer bits cost versions with traffic, as a share of a row's largest output.",
        labels=(*VERSION, "kind"),
    )
    for v in used:
        if v.precision_error is not None:
            errors.add_metric((v.model, str(v.version), "largest"), v.precision_error.largest)
            errors.add_metric((v.model, str(v.version), "mean"), v.precision_error.mean)
    build = GaugeMetricFamily(
        "fused_mlp_build_info", "What runs.", labels=("version", "python", "torch", "front")
    )
    build.add_metric((package_version("fused-mlp"), platform.python_version(), _torch_version(), front), 1)
    yield from (models, kernels, errors, build)


def _torch_version() -> str:
    """Empty where torch is not installed. Does not import it."""
    try:
        return package_version("torch")
    except PackageNotFoundError:
        return ""


def _shadows(versions: list[ServedVersion]) -> Iterator[Metric]:
    """All series of a version once the shadow has chosen a batch of it."""
    batches = CounterMetricFamily(
        "fused_mlp_shadow_batches",
        "Batches chosen to be run again on the other variant, by what became of them.",
        labels=(*VERSION, "outcome"),
    )
    rows = CounterMetricFamily("fused_mlp_shadow_rows", "Rows compared.", labels=VERSION)
    mismatches = CounterMetricFamily(
        "fused_mlp_shadow_mismatches",
        "Compared batches with a difference over the tolerance, by what float64 says about them.",
        labels=(*VERSION, "verdict"),
    )
    compute = HistogramMetricFamily(
        "fused_mlp_shadow_compute_seconds",
        "Each variant on the very same rows: CPU time of one thread, or elapsed on a GPU.",
        labels=LANE,
    )
    absolute = GaugeMetricFamily(
        "fused_mlp_shadow_max_abs_difference", "Largest difference seen since load.", labels=VERSION
    )
    relative = GaugeMetricFamily(
        "fused_mlp_shadow_max_rel_difference",
        "Largest difference seen since load, as a part of the outputs' size.",
        labels=VERSION,
    )
    seconds = [bound / 1e9 for bound in _engine.DURATION_BOUNDS_NS]
    for v in versions:
        if v.shadow is None:
            continue
        labels = (v.model, str(v.version))
        seen = v.shadow.snapshot()
        if not any(seen.batches.values()):
            continue
        for outcome, count in seen.batches.items():
            batches.add_metric((*labels, outcome), count)
        rows.add_metric(labels, seen.rows)
        for verdict, count in seen.verdicts.items():
            mismatches.add_metric((*labels, verdict), count)
        for variant, histogram in (("fused", seen.fused), ("unfused", seen.unfused)):
            buckets = _cumulative(seconds, histogram.buckets)
            compute.add_metric((*labels, variant), buckets, histogram.sum / 1e9)
        absolute.add_metric(labels, seen.max_absolute)
        relative.add_metric(labels, seen.max_relative)
    yield from (batches, rows, mismatches, compute, absolute, relative)


def _policies(models: list[ServedModel]) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "fused_mlp_policy_info", "The policy in force.", labels=("model", "variant", "on_mismatch")
    )
    split = GaugeMetricFamily(
        "fused_mlp_policy_split_ratio", "Share of requests that the other variant answers.", labels=("model",)
    )
    shadow = GaugeMetricFamily(
        "fused_mlp_policy_shadow_ratio", "Share of batches run again on the other variant.", labels=("model",)
    )
    override = GaugeMetricFamily(
        "fused_mlp_policy_allow_override", "Whether a request may name its variant.", labels=("model",)
    )
    for model in models:
        policy = model.policy
        info.add_metric((model.name, policy.variant, policy.on_mismatch), 1)
        split.add_metric((model.name,), policy.split)
        shadow.add_metric((model.name,), policy.shadow)
        override.add_metric((model.name,), float(policy.allow_override))
    yield from (info, split, shadow, override)


def _fallbacks(models: list[ServedModel], used: set[str]) -> Metric:
    fallback = GaugeMetricFamily(
        "fused_mlp_variant_fallback",
        "1 where fused is wanted and unfused serves, by reason.",
        labels=(*VERSION, "reason"),
    )
    for model in models:
        fallen = model.fallen_back
        for v in model.versions if model.name in used else fallen:
            why = v.fallback.reason if v.fallback and v in fallen else None
            for reason in REASONS:
                fallback.add_metric((v.model, str(v.version), reason), float(reason == why))
    return fallback


class FrontCollector(Collector):
    """Connections and streams, as the native front counts them; nothing where the front keeps no such counts."""

    def __init__(self, stats: Callable[[], _front.FrontStats | None]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        if stats := self._stats():
            yield from _front_gauges(stats)
            yield from _front_counters(stats)


def _front_gauges(stats: _front.FrontStats) -> Iterator[Metric]:
    for name, text, value in (
        ("open_connections", "Connections open now.", stats["connections"]),
        ("open_calls", "Calls open now.", stats["open_calls"]),
    ):
        yield GaugeMetricFamily(f"fused_mlp_front_{name}", text, value=value)
    used = GaugeMetricFamily(
        "fused_mlp_front_memory_bytes", "Memory that peers hold, by account.", labels=("account",)
    )
    limit = GaugeMetricFamily(
        "fused_mlp_front_memory_limit_bytes", "The most that each account may hold.", labels=("account",)
    )
    for account, (used_bytes, limit_bytes) in stats["memory"].items():
        used.add_metric((account,), used_bytes)
        limit.add_metric((account,), limit_bytes)
    yield from (used, limit)


def _front_counters(stats: _front.FrontStats) -> Iterator[Metric]:
    for name, text, value in (
        ("connections", "Connections accepted.", stats["accepted"]),
        ("calls", "Calls begun.", stats["calls"]),
        ("failures", "Calls and connections ended by a failure of the front itself.", stats["failures"]),
        ("received_bytes", "Bytes of HTTP/2 received.", stats["received_bytes"]),
        ("sent_bytes", "Bytes of HTTP/2 sent.", stats["sent_bytes"]),
        ("tls_handshakes", "TLS handshakes completed.", stats["tls_handshakes"]),
    ):
        yield CounterMetricFamily(f"fused_mlp_front_{name}", text, value=value)
    ends = CounterMetricFamily(
        "fused_mlp_front_connection_ends", "Connections ended or turned away, by reason.", labels=("reason",)
    )
    for reason, count in stats["ended"].items():
        ends.add_metric((reason,), count)
    refused = CounterMetricFamily(
        "fused_mlp_front_refused_calls",
        "Calls that the front itself ended, by gRPC code: broken requests, limits, deadlines.",
        labels=("code",),
    )
    by_code: dict[int, int] = {**dict.fromkeys(FRONT_CODES, 0), **stats["refused"]}
    for code, count in by_code.items():
        refused.add_metric((Code(code).name,), count)
    shortages = CounterMetricFamily(
        "fused_mlp_front_memory_refusals",
        "Calls refused because all peers, or their address alone, hold too much, by account.",
        labels=("account",),
    )
    for account, count in stats["shortages"].items():
        shortages.add_metric((account,), count)
    resets = CounterMetricFamily("fused_mlp_front_resets", "Streams reset, by sender.", labels=("sender",))
    resets.add_metric(("peer",), stats["received_resets"])
    resets.add_metric(("server",), stats["sent_resets"])
    failures = CounterMetricFamily(
        "fused_mlp_front_tls_failures", "TLS handshakes that failed, by reason.", labels=("reason",)
    )
    for reason, count in stats["tls_failures"].items():
        failures.add_metric((reason,), count)
    yield from (ends, refused, shortages, resets, failures)


class CredentialsCollector(Collector):
    """The certificate, files read again, and administrators turned away."""

    def __init__(self, credentials: ServerCredentials, refused: Mapping[str, int]) -> None:
        self._credentials = credentials
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        if (expiry_s := self._credentials.expiry_s) is not None:
            yield GaugeMetricFamily(
                "fused_mlp_tls_certificate_expiry_timestamp_seconds",
                "When the server's certificate expires.",
                value=expiry_s,
            )
        reloads = CounterMetricFamily(
            "fused_mlp_reloads",
            "Times that files were read again: certificates (tls) and lists of callers.",
            labels=("files", "result"),
        )
        for item in self._credentials.reloads:
            for result, count in item.results.items():
                reloads.add_metric((item.name, result), count)
        refused = CounterMetricFamily(
            "fused_mlp_admin_refused",
            "Calls of the admin service, loads and unloads refused because the caller is not listed, by gRPC code.",
            labels=("code",),
        )
        for code, count in self._refused.items():
            refused.add_metric((code,), count)
        yield from (reloads, refused)


class Exposition:
    """The registry of this process, rendered for a scrape."""

    def __init__(self, *collectors: Collector) -> None:
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self, accept: str, names: Collection[str] = ()) -> tuple[bytes, str]:
        """`names`: of the series, or of whole families, that are asked for; none: all."""
        encode, content_type = choose_encoder(accept)
        return encode(_Selected(self._registry, names) if names else self._registry), content_type


class _Selected(Collector):
    """Prometheus' parameter name[]: some series of a registry. (The registry's own filter knows only collectors that
    announce their names.)"""

    def __init__(self, registry: CollectorRegistry, names: Collection[str]) -> None:
        self._registry, self._names = registry, names

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            samples = [s for s in metric.samples if metric.name in self._names or s.name in self._names]
            if samples:
                selected = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                selected.samples = samples
                yield selected
