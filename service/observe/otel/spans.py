# SPDX-License-Identifier: Apache-2.0
"""Turns the requests that the engine recorded into spans: a server span with queue, batch and compute below it, and a
link to the batch, which is its own trace with links back to its sampled requests."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.util.types import AttributeValue

from fused_mlp.service import _engine
from fused_mlp.service.observe.otel.protocols import Protocols

log = logging.getLogger(__name__)

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_PARTS = {1: "queue", 2: "batch", 3: "compute"}
_MASK = (1 << 64) - 1


class SpanMaker:
    def __init__(self, resource: Resource, version: str, protocols: Protocols) -> None:
        self._resource = resource
        self._protocols = protocols
        self._scope = InstrumentationScope("fused_mlp", version)
        self._offset = 0
        # Batch numbers are unique only within this process.
        self._process = secrets.randbits(64), secrets.randbits(64)
        self._last_batches: set[int] = (
            set()
        )  # batches of the last call: this call may contain some of their requests

    def spans(self, requests: Sequence[_engine.RequestSpan], offset_ns: int) -> Iterator[ReadableSpan]:
        """`offset_ns`: from the engine's clock to the time of day."""
        self._offset = offset_ns
        batches: dict[int, list[_engine.RequestSpan]] = {}
        for request in requests:
            try:
                made = list(self._request(request))
            except Exception:  # one bad request must not cost the others their spans
                log.exception("a request's spans could not be made")
                continue
            yield from made
            if request.batch:
                batches.setdefault(request.batch, []).append(request)
        for number, mates in batches.items():
            if number not in self._last_batches:
                yield self._batch(number, mates)
        self._last_batches = set(batches)

    def _request(self, request: _engine.RequestSpan) -> Iterator[ReadableSpan]:
        own = _context(request, request.id)
        described = self._protocols.describe(request)
        yield ReadableSpan(
            described.name,
            context=own,
            parent=_context(request, request.parent_id, remote=True) if request.parent_id else None,
            resource=self._resource,
            attributes={**described.attributes, **_model(request), "fused_mlp.rows": request.rows},
            links=[Link(self._batch_context(request.batch))] if request.batch else (),
            kind=SpanKind.SERVER,
            status=described.status,
            start_time=request.start + self._offset,
            end_time=request.end + self._offset,
            instrumentation_scope=self._scope,
        )
        if request.batch_start:
            yield self._part(request, 1, own, (request.start, request.batch_start))
        if request.batch:
            batch = _context(request, request.id + 2 & _MASK)
            yield self._part(request, 2, own, (request.batch_start, request.batch_end))
            yield self._part(request, 3, batch, (request.compute_start, request.compute_end))

    def _part(
        self, request: _engine.RequestSpan, number: int, parent: SpanContext, times: tuple[int, int]
    ) -> ReadableSpan:
        """Derives the ids of parts from the id of the request, which is random."""
        start, end = times
        return ReadableSpan(
            _PARTS[number],
            context=_context(request, request.id + number & _MASK),
            parent=parent,
            resource=self._resource,
            start_time=start + self._offset,
            end_time=end + self._offset,
            instrumentation_scope=self._scope,
        )

    def _batch(self, number: int, mates: Sequence[_engine.RequestSpan]) -> ReadableSpan:
        first = mates[0]
        return ReadableSpan(
            "fused_mlp batch",
            context=self._batch_context(number),
            resource=self._resource,
            attributes={
                **_model(first),
                "fused_mlp.rows": first.batch_rows,
                "fused_mlp.strategy": first.strategy,
            },
            links=[Link(_context(mate, mate.id)) for mate in mates],
            start_time=max(mate.batch_start for mate in mates) + self._offset,
            end_time=max(mate.batch_end for mate in mates) + self._offset,
            instrumentation_scope=self._scope,
        )

    def _batch_context(self, number: int) -> SpanContext:
        high, low = (bits ^ number for bits in self._process)
        return SpanContext(high << 64 | low, low or 1, False, _SAMPLED)


def _model(request: _engine.RequestSpan) -> dict[str, AttributeValue]:
    if not request.lane:
        return {"fused_mlp.model": request.model} if request.model else {}
    model, version, variant = request.lane.rsplit("/", 2)
    return {"fused_mlp.model": model, "fused_mlp.version": version, "fused_mlp.variant": variant}


def _context(request: _engine.RequestSpan, span: int, *, remote: bool = False) -> SpanContext:
    high, low = request.trace_id
    return SpanContext(high << 64 | low, span or 1, remote, _SAMPLED)
