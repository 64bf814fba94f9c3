# SPDX-License-Identifier: Apache-2.0
"""From requests, as the engine recorded them, to spans: a server span with queue, batch and compute below it, and a
link to the batch, which is a trace of its own that links back to the sampled requests in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from fused_mlp.service import _engine
from fused_mlp.service.errors import Code

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
# The codes for which the conventions of RPC spans blame the server.
_SERVER_FAILED = {
    Code.UNKNOWN,
    Code.DEADLINE_EXCEEDED,
    Code.UNIMPLEMENTED,
    Code.INTERNAL,
    Code.UNAVAILABLE,
    Code.DATA_LOSS,
}
_PARTS = {1: "queue", 2: "batch", 3: "compute"}
_MASK = (1 << 64) - 1


class SpanMaker:
    def __init__(self, resource: Resource, version: str) -> None:
        self._resource = resource
        self._scope = InstrumentationScope("fused_mlp", version)
        self._offset = 0
        self._told: set[int] = set()  # batches of the last call: some of their requests may come in this one

    def spans(self, requests: Sequence[_engine.RequestSpan], offset_ns: int) -> Iterator[ReadableSpan]:
        """`offset_ns`: from the engine's clock to the time of day."""
        self._offset = offset_ns
        batches: dict[int, list[_engine.RequestSpan]] = {}
        for request in requests:
            yield from self._request(request)
            if request.batch:
                batches.setdefault(request.batch, []).append(request)
        for number, mates in batches.items():
            if number not in self._told:
                yield self._batch(number, mates)
        self._told = set(batches)

    def _request(self, request: _engine.RequestSpan) -> Iterator[ReadableSpan]:
        own = _context(request, request.id)
        code = Code(request.code)
        attributes = {**_protocol(request.rpc, code), **_model(request), "fused_mlp.rows": request.rows}
        yield ReadableSpan(
            request.rpc,
            context=own,
            parent=_context(request, request.parent_id, remote=True) if request.parent_id else None,
            resource=self._resource,
            attributes=attributes,
            links=[Link(_batch_context(request.batch))] if request.batch else (),
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, code.name) if code in _SERVER_FAILED else Status(),
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
        """Ids of parts follow from that of the request, which is random."""
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
            context=_batch_context(number),
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


def _protocol(name: str, code: Code) -> dict[str, AttributeValue]:
    """`name`: package.Service/Method of gRPC, or the verb and the route of REST."""
    if name.startswith("POST "):
        verb, _, route = name.partition(" ")
        # Only the native front, which has this module, speaks REST.
        from fused_mlp.service import _front  # noqa: PLC0415

        status = _front.http_status_of(code)
        return {"http.request.method": verb, "http.route": route, "http.response.status_code": status}
    service, _, method = name.partition("/")
    return {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": method,
        "rpc.grpc.status_code": int(code),
    }


def _model(request: _engine.RequestSpan) -> dict[str, AttributeValue]:
    if not request.lane:
        return {"fused_mlp.model": request.model} if request.model else {}
    model, version, variant = request.lane.rsplit("/", 2)
    return {"fused_mlp.model": model, "fused_mlp.version": version, "fused_mlp.variant": variant}


def _context(request: _engine.RequestSpan, span: int, *, remote: bool = False) -> SpanContext:
    high, low = request.trace_id
    return SpanContext(high << 64 | low, span or 1, remote, _SAMPLED)


def _batch_context(number: int) -> SpanContext:
    return SpanContext(number << 64 | number, number, False, _SAMPLED)
