"""Predictions for the Python front: decode, route, check, submit, encode, and count each request once. The
native front does the same in C++, on the same engine, with the same checks and texts."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.service import _engine
from fused_mlp.service.errors import Answer, Code, EngineRefused, InvalidInput, answer
from fused_mlp.service.fronts.python.fan_out import fan_out
from fused_mlp.service.fronts.python.messages import (
    VARIANT_NAMES,
    PredictInput,
    read_infer,
    read_predict,
    write_infer,
    write_predict,
)
from fused_mlp.service.fronts.python.submission import Submitter
from fused_mlp.service.fronts.rpc import Call, Rpc, decode, rpcs_of

log = logging.getLogger(__name__)

# Metadata of a request: the key of a split, and the requested variant.
AB_KEY, VARIANT_KEY = "x-ab-key", "x-fused-mlp-variant"
_DECODE, _ENCODE = _engine.TracePhase.decode, _engine.TracePhase.encode
# Requests of one stream in flight at once; reading stops beyond that.
STREAM_WINDOW = 256


@dataclass(frozen=True)
class Api:
    """How one of the two APIs encodes a prediction."""

    message: type[Any]
    read: Callable[[Any], PredictInput]
    write: Callable[[Any, PredictInput, _engine.Route, _engine.TicketResult], Any]
    id_field: str


PREDICT = Api(fm.PredictRequest, read_predict, write_predict, "request_id")
INFER = Api(oip.ModelInferRequest, read_infer, write_infer, "id")


class RequestFailed(Exception):
    """A prediction failed and was counted; `response` goes to the caller."""

    def __init__(self, response: Answer, request_id: str) -> None:
        super().__init__(response.text)
        self.response = response
        self.request_id = request_id


class Predictor:
    def __init__(self, engine: _engine.Engine, router: _engine.Router, submitter: Submitter) -> None:
        self._engine = engine
        self._router = router
        self._submitter = submitter

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
        # Decoding is part of the request here: a message that cannot be read is answered and counted too.
        return [replace(rpc, decode=bytes) for rpc in rpcs]

    async def predict(self, data: bytes, call: Call) -> Any:
        return await self._answer(PREDICT, data, call)

    async def infer(self, data: bytes, call: Call) -> Any:
        return await self._answer(INFER, data, call)

    async def predict_stream(self, messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[Any]:
        async def one(data: bytes) -> Any:
            try:
                return await self._answer(PREDICT, data, call)
            except RequestFailed as failure:
                error = fm.Error(code=failure.response.code, message=failure.response.text)
                return fm.PredictResponse(request_id=failure.request_id, error=error)

        async for response in fan_out(messages, one, STREAM_WINDOW):
            yield response

    async def infer_stream(self, messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[Any]:
        async def one(data: bytes) -> Any:
            try:
                return oip.ModelStreamInferResponse(infer_response=await self._answer(INFER, data, call))
            except RequestFailed as failure:
                # The id tells the caller which of its requests failed.
                response = oip.ModelInferResponse(id=failure.request_id)
                return oip.ModelStreamInferResponse(
                    error_message=failure.response.text, infer_response=response
                )

        async for response in fan_out(messages, one, STREAM_WINDOW):
            yield response

    async def _answer(self, api: Api, data: bytes, call: Call) -> Any:
        started = self._engine.now()
        lane: _engine.Lane | None = None
        code = Code.INTERNAL
        request_id = ""
        try:
            request = decode(api.message, data)
            request_id = getattr(request, api.id_field)
            sent = api.read(request)
            # The message takes precedence over the metadata.
            in_metadata = _requested_variant(call)
            variant = in_metadata if sent.variant is _engine.Variant.unspecified else sent.variant
            key = call.metadata.get(AB_KEY, "")
            route = self._router.resolve(sent.model, sent.version, variant, key, request_id)
            lane = route.lane
            rows = sent.check_rows(route)
            traced = self._trace_decode(started, rows, lane) if _engine.tracing() else 0
            done = await self._submitter.run(
                lane, sent.data, sent.dtype, rows, call.deadline_ns, trace_id=traced
            )
            finished = self._engine.now() if traced else 0
            response = api.write(request, sent, route, done)
            if traced:
                _engine.record_span(_ENCODE, traced, rows, finished, self._engine.now(), lane.name)
            code = Code.OK
            return response
        except asyncio.CancelledError:
            # grpc ends a handler the same way when its deadline passes and when its caller hangs up.
            expired = 0 < call.deadline_ns <= self._engine.now()
            code = Code.DEADLINE_EXCEEDED if expired else Code.CANCELLED
            raise
        except Exception as error:
            failure = _failure_response(error, request_id)
            code = failure.code
            if lane is not None and code is Code.INVALID_ARGUMENT:
                lane.refuse_invalid()
            raise RequestFailed(failure, request_id) from error
        finally:
            duration = self._engine.now() - started
            if lane is None:
                self._engine.record_unrouted(code, duration)
            else:
                lane.record(code, duration)

    def _trace_decode(self, started: int, rows: int, lane: _engine.Lane) -> int:
        """The number under which the request is traced from here on."""
        number = _engine.next_trace_id()
        _engine.record_span(_DECODE, number, rows, started, self._engine.now(), lane.name)
        return number


def _requested_variant(call: Call) -> _engine.Variant:
    name = call.metadata.get(VARIANT_KEY)
    if name is None:
        return _engine.Variant.unspecified
    if name not in VARIANT_NAMES:
        raise InvalidInput(f"{VARIANT_KEY}: expected fused or unfused, got {_engine.quote_name(name)}")
    return VARIANT_NAMES[name]


def _failure_response(error: Exception, request_id: str) -> Answer:
    """An INTERNAL error carries an id, which links the caller's report to our log line."""
    if isinstance(error, _engine.Refused):
        error = EngineRefused(_engine.grpc_code(error.status), str(error), error.retry_after_ms)
    request_id = request_id or secrets.token_hex(8)
    response = answer(error, request_id)
    if response.code is Code.INTERNAL:
        log.error("request %s failed: %s", request_id, error, exc_info=error)
    return response
