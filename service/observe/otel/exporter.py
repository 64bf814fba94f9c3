# SPDX-License-Identifier: Apache-2.0
"""Exports sampled requests from its own thread. A slow collector delays only this thread: spans beyond the engine's
buffer are dropped and counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from ipaddress import ip_address
from itertools import islice
from socket import gethostname

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from fused_mlp.service import _engine
from fused_mlp.service.observe.otel.environment import Tracing
from fused_mlp.service.observe.otel.protocols import Protocols
from fused_mlp.service.observe.otel.spans import SpanMaker
from fused_mlp.service.settings.settings import Settings, SettingsError

log = logging.getLogger(__name__)

# At the end, remaining spans are exported, unless the collector takes longer than this.
LAST_EXPORT_S = 2.0


class Exporter:
    def __init__(self, tracing: Tracing, version: str) -> None:
        """Raises SettingsError."""
        self._tracing = tracing
        self._version = version
        self._exporter = _make_exporter(tracing)
        self._stopping = threading.Event()
        self._reachable = True
        self._reason = _LastMessage()
        self.spans = {"exported": 0, "failed": 0}
        self._thread: threading.Thread | None = None

    def start(self, settings: Settings, *, grpc_port: int, rest_port: int) -> None:
        # The library logs every message that fails; we log when failures begin and end.
        library = logging.getLogger("opentelemetry.exporter")
        library.addHandler(self._reason)
        library.propagate = False
        tracing = self._tracing
        protocols = Protocols(
            _own_name(settings.host), grpc_port, rest_port, tls=settings.tls_certificate is not None
        )
        maker = SpanMaker(_resource(self._version), self._version, protocols)
        _engine.start_sampling(tracing.ratio, tracing.parents_decide, tracing.queue_size)
        self._thread = threading.Thread(target=self._run, args=(maker,), name="otel-export", daemon=True)
        self._thread.start()
        log.info("exporting spans to %s (%s)", tracing.endpoint, tracing.protocol)

    def stop(self) -> None:
        """Exports the remaining spans, for a bounded time."""
        _engine.stop_sampling()
        self._stopping.set()
        if self._thread is None:
            return
        self._thread.join(LAST_EXPORT_S)
        if self._thread.is_alive():
            log.warning(
                "the last spans were not exported to %s in %g s", self._tracing.endpoint, LAST_EXPORT_S
            )

    def _run(self, maker: SpanMaker) -> None:
        last = False
        while not last:
            last = self._stopping.wait(self._tracing.delay_s)
            try:
                self._export_taken(maker)
            except Exception:  # no request may stop the thread: later requests have spans too
                log.exception("the spans of some requests were not exported")
        self._exporter.shutdown()

    @property
    def dropped_requests(self) -> int:
        return _engine.dropped_request_spans()

    def _export_taken(self, maker: SpanMaker) -> None:
        """After a failed message the rest is not tried: it would wait as long, and new requests would be lost."""
        requests = _engine.take_request_spans()
        if not requests:
            return
        spans = maker.spans(requests, time.time_ns() - time.monotonic_ns())
        sent = True
        while some := list(islice(spans, self._tracing.batch_size)):
            sent = sent and self._send(some)
            self.spans["exported" if sent else "failed"] += len(some)
        if sent and not self._reachable:
            log.warning("spans are exported again to %s", self._tracing.endpoint)
        elif self._reachable and not sent:
            log.warning("spans cannot be exported to %s: %s", self._tracing.endpoint, self._reason.text)
        self._reachable = sent

    def _send(self, spans: Sequence[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # it promises not to raise, but this thread must not depend on that
            self._reason.text = repr(error)
            return False


class _LastMessage(logging.Handler):
    """Keeps the library's last message, which says why an export failed."""

    text = "no reason given"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def _own_name(host: str) -> str:
    """The server's address in spans; not 0.0.0.0."""
    try:
        return gethostname() if ip_address(host).is_unspecified else host
    except ValueError:  # a name
        return host


def _resource(version: str) -> Resource:
    """Named by OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES; without them the SDK picks a name."""
    found = Resource.create()
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "fused-mlp"}))
    return Resource({SERVICE_VERSION: version}).merge(found)


def _make_exporter(tracing: Tracing) -> SpanExporter:
    """The exporter reads headers, certificates, compression and timeout from the environment."""
    try:
        if tracing.protocol == "console":
            return ConsoleSpanExporter()
        if tracing.protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

            return OTLPSpanExporter()
        from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415

        return trace_exporter.OTLPSpanExporter()
    except ModuleNotFoundError:
        raise
    except Exception as error:  # for a variable that only the library knows
        raise SettingsError(f"OpenTelemetry's exporter refuses its variables: {error}") from None
