# SPDX-License-Identifier: Apache-2.0
"""Matches the responses of a stream with its requests, for both clients. add() and resolve() may run on two threads:
each changes the table by single dict operations."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import grpc

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.service.client.errors import PredictError
from fused_mlp.service.client.prediction import Prediction, StreamItem, build_request, read_prediction
from fused_mlp.variant import Variant

if TYPE_CHECKING:
    from fused_mlp.service.client.tensors import Rows


class OpenRequests:
    """The open requests of one stream, by request id: `<prefix>-<index>`."""

    def __init__(
        self,
        target: str,
        model: str,
        version: int | None,
        variant: Variant | None,
        prefix: str,
        *,
        output: str | None,
        arm: str | None = None,
    ) -> None:
        self._target = target
        self._model = model
        self._version = version
        self._variant = variant
        self._output = output
        self._arm = arm
        self._prefix = prefix or uuid.uuid4().hex[:12]
        self._next_index = 0
        self._open: dict[str, tuple[int, bool]] = {}

    def add(self, x: Rows) -> pb.PredictRequest:
        index = self._next_index
        request_id = f"{self._prefix}-{index}"
        request, one_row = build_request(
            self._model, x, self._version, self._variant, request_id, output=self._output, arm=self._arm
        )
        self._next_index += 1
        self._open[request_id] = (index, one_row)
        return request

    def resolve(self, response: pb.PredictResponse) -> StreamItem:
        request_id = response.request_id
        if request_id not in self._open:
            raise self._broken(f"the server answered request {request_id!r}, which is not open", request_id)
        index, one_row = self._open.pop(request_id)
        return StreamItem(index, request_id, self._result(response, one_row))

    def require_none(self) -> None:
        """Raise if the stream ended before every request was answered."""
        if self._open:
            raise self._broken(f"the server ended the stream with {len(self._open)} requests unanswered", "")

    def _result(self, response: pb.PredictResponse, one_row: bool) -> Prediction | PredictError:
        if response.HasField("error"):
            error = response.error
            return PredictError.from_number(
                error.code, error.message, target=self._target, request_id=response.request_id
            )
        return read_prediction(response, one_row, self._target)

    def _broken(self, message: str, request_id: str) -> PredictError:
        return PredictError(grpc.StatusCode.INTERNAL, message, target=self._target, request_id=request_id)
