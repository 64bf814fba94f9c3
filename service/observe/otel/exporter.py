"""Exports sampled requests from a thread of its own. A slow collector delays only this thread: what does not fit into
the engine's buffer meanwhile is dropped and counted."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from itertools import islice

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from fused_mlp.service import _engine
from fused_mlp.service.observe.otel.environment import Tracing
from fused_mlp.service.observe.otel.spans import SpanMaker

log = logging.getLogger(__name__)

# At the end: what is left is exported, unless the collector takes longer than this.
LAST_EXPORT_S = 2.0


class Exporter:
    def __init__(self, tracing: Tracing, version: str) -> None:
        self._tracing = tracing
        self._maker = SpanMaker(_resource(version), version)
        self._exporter = _otlp(tracing)
        self._stopping = threading.Event()
        self._well = True
        self.spans = {"exported": 0, "failed": 0}
        self.dropped_requests = 0
        self._thread = threading.Thread(target=self._run, name="otel-export", daemon=True)

    def start(self) -> None:
        tracing = self._tracing
        _engine.start_sampling(tracing.ratio, tracing.parents_decide, tracing.queue_size)
        self._thread.start()
        log.info("exporting spans to %s (%s)", tracing.endpoint, tracing.protocol)

    def stop(self) -> None:
        """Exports what is left, within a bound."""
        _engine.stop_sampling()
        self._stopping.set()
        self._thread.join(LAST_EXPORT_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._tracing.delay_s):
            self._export_taken()
        self._export_taken()
        self._exporter.shutdown()

    def _export_taken(self) -> None:
        requests, self.dropped_requests = _engine.take_request_spans()
        if not requests:
            return
        spans = self._maker.spans(requests, time.time_ns() - time.monotonic_ns())
        while some := list(islice(spans, self._tracing.batch_size)):
            try:
                result = self._exporter.export(some)
            except (
                Exception
            ) as error:  # it promises not to raise; a request must never pay for a broken promise
                log.debug("the exporter of spans failed", exc_info=error)
                result = SpanExportResult.FAILURE
            well = result is SpanExportResult.SUCCESS
            self.spans["exported" if well else "failed"] += len(some)
            if well != self._well:
                log.warning(
                    "spans %s be exported to %s", "can again" if well else "cannot", self._tracing.endpoint
                )
            self._well = well


def _resource(version: str, environment: Mapping[str, str] = os.environ) -> Resource:
    """Named as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, which attributes given here would override."""
    found = Resource.create()
    named = environment.get("OTEL_SERVICE_NAME") or SERVICE_NAME in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    ours = Resource({SERVICE_NAME: "fused-mlp", SERVICE_VERSION: version})
    return ours.merge(found) if named else found.merge(ours)


def _otlp(tracing: Tracing) -> SpanExporter:
    """Reads headers, certificates, compression and timeout from the environment by itself."""
    if tracing.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        return OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415

    return trace_exporter.OTLPSpanExporter()
