# SPDX-License-Identifier: Apache-2.0
"""/metrics of one process: models and lanes, the front, credentials, and the process metrics of prometheus_client.
Nothing here runs per request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from fused_mlp.service.errors import Code
from fused_mlp.service.observe.log_writer import dropped_lines

if TYPE_CHECKING:
    from fused_mlp.models import Repository
    from fused_mlp.service import _front
    from fused_mlp.service.access.audit import AuditFile
    from fused_mlp.service.access.credentials import ServerCredentials
    from fused_mlp.service.observe.http_request import Query
    from fused_mlp.service.observe.otel.exporter import Exporter
    from fused_mlp.service.observe.scrape.model_metrics import ModelMetrics

log = logging.getLogger(__name__)

# With which the native front itself ends calls. Shown from the start, so that rates have a zero to begin with.
FRONT_CODES = (
    Code.INVALID_ARGUMENT,
    Code.DEADLINE_EXCEEDED,
    Code.RESOURCE_EXHAUSTED,
    Code.UNIMPLEMENTED,
    Code.INTERNAL,
    Code.UNAVAILABLE,
)


class FrontCollector(Collector):
    """Connections and streams, as the native front counts them; empty for a front without such counters."""

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


class RepositoryCollector(Collector):
    """`failures`: of repositories that are fetched from a URL."""

    def __init__(self, parts: Sequence[Repository], failures: Callable[[], Mapping[str, int]]) -> None:
        self._parts = parts
        self._failures = failures

    def collect(self) -> Iterator[Metric]:
        text = (
            "What of a repository could not be read or fetched last time: the whole of it, models, versions."
        )
        problems = GaugeMetricFamily("fused_mlp_repository_problems", text, labels=("repository",))
        for place, count in {part.shown: len(part.problems) for part in self._parts}.items():
            problems.add_metric((place,), count)
        yield problems
        text = "Times that a repository, or a version of it, could not be fetched."
        failures = CounterMetricFamily("fused_mlp_fetch_failures", text, labels=("repository",))
        for repository, count in self._failures().items():
            failures.add_metric((repository,), count)
        if failures.samples:
            yield failures


class LogCollector(Collector):
    """The log itself."""

    def collect(self) -> Iterator[Metric]:
        text = "Log lines that were not written, because nothing read stderr."
        yield CounterMetricFamily("fused_mlp_log_lines_dropped", text, value=dropped_lines())


class SpanCollector(Collector):
    """Spans exported to a tracing system."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter

    def collect(self) -> Iterator[Metric]:
        spans = CounterMetricFamily(
            "fused_mlp_otel_spans",
            "Spans sent to the OpenTelemetry collector, by result.",
            labels=("result",),
        )
        for result, count in self._exporter.spans.items():
            spans.add_metric((result,), count)
        yield spans
        yield CounterMetricFamily(
            "fused_mlp_otel_dropped_requests",
            "Sampled requests without spans, because the collector was too slow.",
            value=self._exporter.dropped_requests,
        )


class CredentialsCollector(Collector):
    """The certificate, files read again, administrators turned away, and the audit file."""

    def __init__(
        self, credentials: ServerCredentials, refused: Mapping[str, int], audit_file: AuditFile | None
    ) -> None:
        self._credentials = credentials
        self._refused = refused
        self._audit_file = audit_file

    def collect(self) -> Iterator[Metric]:
        if (expiry_s := self._credentials.expiry_s) is not None:
            yield GaugeMetricFamily(
                "fused_mlp_tls_certificate_expiry_timestamp_seconds",
                "When the server's certificate expires.",
                value=expiry_s,
            )
        reloads = CounterMetricFamily(
            "fused_mlp_reloads",
            "Times that files were read again: certificates (tls), lists of callers, policies.",
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
        yield from self._callers()
        if self._audit_file is not None:
            lines = CounterMetricFamily(
                "fused_mlp_audit_lines",
                "Administrative actions, by whether FUSED_MLP_AUDIT_LOG has them.",
                labels=("result",),
            )
            for result, count in self._audit_file.results.items():
                lines.add_metric((result,), count)
            yield lines

    def _callers(self) -> Iterator[Metric]:
        """Callers with traffic. Their names come from the key file, which bounds their number."""
        requests = CounterMetricFamily(
            "fused_mlp_caller_requests",
            "Requests of a caller that were within its quotas.",
            labels=("caller",),
        )
        rows = CounterMetricFamily("fused_mlp_caller_rows", "Rows of those requests.", labels=("caller",))
        refused = CounterMetricFamily(
            "fused_mlp_caller_refused",
            "Requests of a caller refused by a quota, or because it may not use that model.",
            labels=("caller", "reason"),
        )
        callers = {caller.name: caller for caller in self._credentials.access.callers.all()}
        for name, caller in callers.items():
            usage = caller.usage()
            if usage["requests"]:
                requests.add_metric((name,), usage["requests"])
                rows.add_metric((name,), usage["rows"])
            for reason, count in usage["refused"].items():
                if count:
                    refused.add_metric((name, reason), count)
        yield from (requests, rows, refused)


class Exposition:
    """All metrics of this process, as text for a scrape."""

    def __init__(self, models: ModelMetrics, *collectors: Collector) -> None:
        self._models = models
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(_Guarded(collector))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self, accept: str, query: Query) -> tuple[list[bytes], str]:
        """`name[]`: of the series, or of whole families, that are asked for; none: all. `buckets`: fine or coarse."""
        names, buckets = query.all("name[]"), query.choice("buckets", "fine", "coarse")
        encode, content_type = choose_encoder(accept)
        models = self._models.text(names, buckets, openmetrics="openmetrics" in content_type)
        # OpenMetrics ends with a line of its own, so this is last.
        rest = encode(_Selected(self._registry, names) if names else self._registry)
        return [*models, rest], content_type


class _Guarded(Collector):
    """A collector that fails is missing from the page; the others are shown."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Sequence[Metric]:
        try:
            return list(self._collector.collect())
        except Exception:
            log.exception("%s failed; its metrics are missing", type(self._collector).__name__)
            return []


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
