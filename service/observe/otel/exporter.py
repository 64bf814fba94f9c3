# SPDX-License-Identifier: Apache-2.0
"""Exports sampled requests from a thread of its own. A slow collector delays only this thread: what does not fit into
the engine's buffer meanwhile is dropped and counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from itertools import islice

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan
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
        self._thread = threading.Thread(target=self._run, name="otel-export", daemon=True)

    def start(self) -> None:
        # It would tell of every message that fails; we tell when that begins and ends.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
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

    @property
    def dropped_requests(self) -> int:
        return _engine.dropped_request_spans()

    def _export_taken(self) -> None:
        """After a message that failed the rest is not tried: it would wait for as long while new requests are lost."""
        requests = _engine.take_request_spans()
        if not requests:
            return
        spans = self._maker.spans(requests, time.time_ns() - time.monotonic_ns())
        well = True
        while some := list(islice(spans, self._tracing.batch_size)):
            well = well and self._send(some)
            self.spans["exported" if well else "failed"] += len(some)
        if well != self._well:
            log.warning(
                "spans %s be exported to %s", "can again" if well else "cannot", self._tracing.endpoint
            )
        self._well = well

    def _send(self, spans: Sequence[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # it promises not to raise, but no request may depend on that
            log.debug("the exporter of spans failed", exc_info=error)
            return False


def _resource(version: str) -> Resource:
    """Named by OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES; the SDK has a name of its own where they name nothing."""
    found = Resource.create()
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "fused-mlp"}))
    return Resource({SERVICE_VERSION: version}).merge(found)


def _otlp(tracing: Tracing) -> SpanExporter:
    """Reads headers, certificates, compression and timeout from the environment by itself."""
    if tracing.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        return OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415

    return trace_exporter.OTLPSpanExporter()
