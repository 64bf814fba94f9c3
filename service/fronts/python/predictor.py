# SPDX-License-Identifier: Apache-2.0
"""Predictions for the Python front: decode, route, check, submit, encode, and count each request once. The
native front does the same in C++, with the same codec, engine, checks and texts."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from zlib import crc32

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.service import _engine
from fused_mlp.service.access.access import Access
from fused_mlp.service.errors import Answer, Code, EngineRefused, InvalidInput, answer
from fused_mlp.service.fronts.python.fan_out import fan_out
from fused_mlp.service.fronts.python.submission import Submitter
from fused_mlp.service.fronts.rpc import Call, Rpc, Want, rpcs_of

log = logging.getLogger(__name__)

# Metadata of a request: the key of a split, and the requested arm or variant.
AB_KEY, ARM_KEY, VARIANT_KEY = "x-ab-key", "x-fused-mlp-arm", "x-fused-mlp-variant"
_WANT_AGAIN_S = 1.0  # a load that no request waits for is not begun
_DECODE, _ENCODE = _engine.TracePhase.decode, _engine.TracePhase.encode
TRACE_KEY = "traceparent"
LONGEST_MODEL_TOLD = 128
MIN_DEADLINE_TOLERANCE_NS = 2_000_000
# Requests of one stream in flight at once; reading stops beyond that.
STREAM_WINDOW = 256


class RequestFailed(Exception):
    """A prediction failed and was counted; `response` is what the caller gets."""

    def __init__(self, response: Answer, request_id: str) -> None:
        super().__init__(response.text)
        self.response = response
        self.request_id = request_id


class Predictor:
    def __init__(
        self,
        engine: _engine.Engine,
        router: _engine.Router,
        submitter: Submitter,
        want: Want | None = None,
        access: Access | None = None,
    ) -> None:
        """`access`: None where predictions are for all."""
        self._engine = engine
        self._router = router
        self._submitter = submitter
        self._want = want
        self._access = access

    def rpcs(self) -> list[Rpc]:
        rpcs = [
            *rpcs_of(
                fm.DESCRIPTOR.services_by_name["Inference"],
                {"Predict": self.predict, "PredictStream": self.predict_stream},
            ),
            *rpcs_of(
                oip.DESCRIPTOR.services_by_name["GRPCInferenceService"],
                {"ModelInfer": self.infer, "ModelStreamInfer": self.infer_stream},
            ),
        ]
        # The codec reads and writes bytes. A message that cannot be read is answered and counted like any other.
        return [replace(rpc, decode=bytes, encode=bytes) for rpc in rpcs]

    async def predict(self, data: bytes, call: Call) -> bytes:
        return await self._answer(_engine.PREDICT_CODEC, data, call, "fused_mlp.v1.Inference/Predict")

    async def infer(self, data: bytes, call: Call) -> bytes:
        return await self._answer(
            _engine.INFER_CODEC, data, call, "inference.GRPCInferenceService/ModelInfer"
        )

    def predict_stream(self, messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        return self._answer_stream(
            _engine.PREDICT_CODEC, messages, call, "fused_mlp.v1.Inference/PredictStream"
        )

    def infer_stream(self, messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        return self._answer_stream(
            _engine.INFER_STREAM_CODEC, messages, call, "inference.GRPCInferenceService/ModelStreamInfer"
        )

    def _answer_stream(
        self, codec: _engine.Codec, messages: AsyncIterator[bytes], call: Call, rpc: str
    ) -> AsyncIterator[bytes]:
        self._identify(call)

        async def one(data: bytes) -> bytes:
            try:
                return await self._answer(codec, data, call, rpc)
            except RequestFailed as failure:
                response = failure.response
                return codec.encode_error(failure.request_id, response.code, response.text)

        return fan_out(messages, one, STREAM_WINDOW)

    async def _answer(self, codec: _engine.Codec, data: bytes, call: Call, rpc: str) -> bytes:
        started = self._engine.now()
        caller = _engine.TraceContext(call.metadata.get(TRACE_KEY, ""))
        span = _sample(caller, rpc, started, call.peer_address) if _engine.sampling() else None
        trace = span.context if span else caller  # of the caller, or one that begins here
        queue_ns, compute_ns = -1, 0
        lane: _engine.Lane | None = None
        code = Code.INTERNAL
        request = codec.decode(data)
        try:
            if request.error:
                raise InvalidInput(request.error)
            request.complete_arm(call.metadata.get(ARM_KEY), call.metadata.get(VARIANT_KEY))
            who = self._check_caller(call, request.model)
            route = await self._route(request, call.metadata.get(AB_KEY, ""))
            lane = route.lane
            rows = request.check_rows(route)
            traced = self._trace_decode(started, rows, lane, trace) if _engine.tracing() else 0
            with _within_quota(who, rows):
                done = await self._submitter.run(
                    lane,
                    request.data,
                    request.dtype,
                    rows,
                    call.deadline_ns,
                    trace_id=traced,
                    span=span,
                    caller=who,
                )
            queue_ns, compute_ns = done.queue_ns, done.compute_ns
            finished = self._engine.now() if traced else 0
            response = codec.encode(request, route, done)
            if traced:
                _engine.record_span(_ENCODE, traced, rows, finished, self._engine.now(), lane.name)
            code = Code.OK
            return response
        except asyncio.CancelledError:
            # grpc ends a handler the same way when its deadline passes and when its caller hangs up.
            expired = _ended_at_deadline(started, call.deadline_ns, self._engine.now())
            code = Code.DEADLINE_EXCEEDED if expired else Code.CANCELLED
            raise
        except Exception as error:
            failure = _respond(error, request.short_id, trace.trace_id)
            code = failure.code
            lane = _counted_on(lane, error)
            if lane is not None and code is Code.INVALID_ARGUMENT:
                lane.refuse_invalid()
            raise RequestFailed(failure, request.request_id) from error
        finally:
            duration = self._engine.now() - started
            if lane is not None:
                lane.record(code, duration)
                if trace.sampled:
                    lane.add_exemplars(trace, duration, queue_ns, compute_ns)
            elif request.error or not self._router.record_unserved(request.model, code, duration):
                self._engine.record_unrouted(code, duration)
            if span is not None:
                model = "" if request.error else request.model[:LONGEST_MODEL_TOLD]
                span.finish(code, lane.name if lane else "", model, self._engine.now())

    def _check_caller(self, call: Call, model: str) -> _engine.Caller | None:
        """Checks each request of a stream again, because the rules may have changed. Raises EngineRefused."""
        caller = self._identify(call)
        if caller is not None and not caller.allows(_engine.Action.predict, model):
            caller.count_denied()
            text = f"this caller may not call model {_engine.quote_name(model)}"
            raise EngineRefused(Code.PERMISSION_DENIED, text)
        return caller

    def _identify(self, call: Call) -> _engine.Caller | None:
        """None where predictions are for all. Raises EngineRefused."""
        if self._access is None:
            return None
        identity = self._access.identify(call.metadata, call.certificate_names, call.peer_address)
        if identity.caller is None:
            raise EngineRefused(identity.code, identity.text, identity.retry_after_ms)
        return identity.caller

    async def _route(self, request: _engine.PredictInput, key: str) -> _engine.Route:
        """Waits for a version that is loaded on demand. Raises Refused."""
        while True:
            try:
                return self._router.resolve(
                    request.model, request.version, request.variant, key, request.request_id, request.label
                )
            except _engine.Refused as refused:
                if refused.status is not _engine.Status.not_loaded or self._want is None:
                    raise
                version = refused.version
            # Not cancelled when this caller gives up: the load is for others too.
            await asyncio.wait(
                [asyncio.wrap_future(self._want(request.model, version))], timeout=_WANT_AGAIN_S
            )

    def _trace_decode(self, started: int, rows: int, lane: _engine.Lane, caller: _engine.TraceContext) -> int:
        """Returns the number under which the request is traced."""
        number = _engine.next_trace_id()
        _engine.record_span(_DECODE, number, rows, started, self._engine.now(), lane.name, caller)
        return number


class _QuotaUsedUp(EngineRefused):
    """Not counted on the lane: the caller used up its quota."""


@contextmanager
def _within_quota(caller: _engine.Caller | None, rows: int) -> Iterator[None]:
    """Raises _QuotaUsedUp."""
    if caller is None:
        yield
        return
    try:
        caller.admit(rows)
    except _engine.Refused as refused:
        raise _QuotaUsedUp(_engine.grpc_code(refused.status), str(refused), refused.retry_after_ms) from None
    try:
        yield
    finally:
        caller.release()


def _counted_on(lane: _engine.Lane | None, error: Exception) -> _engine.Lane | None:
    if isinstance(error, _QuotaUsedUp):
        return None
    return lane or error.lane if isinstance(error, _engine.Refused) else lane


def _sample(
    caller: _engine.TraceContext, rpc: str, started_ns: int, peer_address: str
) -> _engine.RequestSpan | None:
    address = crc32(peer_address.rpartition(":")[0].encode())
    return _engine.sample_request(caller, rpc, started_ns, address)


def _ended_at_deadline(started_ns: int, deadline_ns: int, now_ns: int) -> bool:
    """As Call::reset_at_deadline: a client's own deadline is before the one that it sends."""
    tolerance_ns = max((deadline_ns - started_ns) // 10, MIN_DEADLINE_TOLERANCE_NS)
    return deadline_ns != 0 and now_ns >= deadline_ns - tolerance_ns


def _respond(error: Exception, request_id: str, trace_id: str) -> Answer:
    """INTERNAL errors get an id that appears in the response and in the log."""
    if isinstance(error, _engine.Refused):
        error = EngineRefused(_engine.grpc_code(error.status), str(error), error.retry_after_ms)
    request_id = request_id or secrets.token_hex(8)
    response = answer(error, request_id)
    if response.code is Code.INTERNAL:
        log.error("request %s failed: %s", request_id, error, exc_info=error, extra={"trace_id": trace_id})
    return response
