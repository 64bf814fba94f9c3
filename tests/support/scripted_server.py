# SPDX-License-Identifier: Apache-2.0
"""A server that tests of the client and the CLI can script: the real wire contract over a real socket with a
real model behind it, which fails, waits and reorders when told to. How our own server behaves is tested in
tests/e2e."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

import grpc
import torch
from grpc_health.v1 import health

from fused_mlp.protos import fused_mlp_pb2 as pb

TORCH_TYPES = {
    pb.FP32: torch.float32,
    pb.FP16: torch.float16,
    pb.BF16: torch.bfloat16,
    pb.FP64: torch.float64,
}


@dataclass
class Failure:
    code: grpc.StatusCode
    details: str
    trailers: tuple[tuple[str, str], ...]


@dataclass
class ScriptedServer:
    """Serves the model `tiny` (4 inputs, 3 labelled outputs) in the dtype of the request."""

    module: torch.nn.Module
    target: str = ""
    failures: deque[Failure] = field(default_factory=deque)
    requests: list[pb.PredictRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    time_remaining: list[float | None] = field(default_factory=list)
    reorder: int = 0  # answer a stream in groups of this many, last first
    most_open: int = 0
    stream_ends_after: int | None = None
    arrived: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    statuses: health.HealthServicer = field(default_factory=health.HealthServicer)

    def answer(self, request: pb.PredictRequest) -> pb.PredictResponse:
        dtype = TORCH_TYPES[request.input.dtype]
        x = torch.frombuffer(bytearray(request.input.data), dtype=dtype).reshape(*request.input.shape)
        with torch.inference_mode():
            y = self.module(x.float()).to(dtype)

        def tensor(values: torch.Tensor) -> pb.Tensor:
            data = values.contiguous().view(torch.uint8).numpy().tobytes()
            return pb.Tensor(shape=values.shape, dtype=request.input.dtype, data=data)

        named = {}
        if request.output == "*":  # a second head: the first number, squeezed
            second = pb.HeadOutput(name="v", output=tensor(y[..., :1]), squeeze=True)
            named = {"output_name": "pi", "others": [second]}
        return pb.PredictResponse(
            output=tensor(y),
            **named,
            model=request.model,
            version=request.version or 7,
            variant=request.variant or pb.FUSED,
            strategy="eager",
            timings=pb.Timings(queue_ns=1500, compute_ns=2500, batch_rows=len(y)),
            request_id=request.request_id,
        )

    def Predict(self, request, context):  # noqa: N802
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.time_remaining.append(context.time_remaining())
        self.arrived.set()
        if self.failures:
            failure = self.failures.popleft()
            context.set_trailing_metadata(failure.trailers)
            context.abort(failure.code, failure.details)
        if request.model == "stuck":
            self.release.wait(10)
        return self.answer(request)

    def PredictStream(self, requests, context):  # noqa: N802
        held: list[pb.PredictRequest] = []
        for number, request in enumerate(requests):
            if self.stream_ends_after == number:
                return
            if self.failures:
                failure = self.failures.popleft()
                context.abort(failure.code, failure.details)
            held.append(request)
            self.most_open = max(self.most_open, len(held))
            if len(held) >= self.reorder:
                yield from self._answer_stream(held)
        yield from self._answer_stream(held)

    def _answer_stream(self, held: list[pb.PredictRequest]):
        while held:
            request = held.pop()
            if request.input.shape[-1] == 4:
                yield self.answer(request)
            else:
                error = pb.Error(code=3, message=f"expected 4 columns, got {request.input.shape[-1]}")
                yield pb.PredictResponse(request_id=request.request_id, error=error)

    def ListModels(self, request, context):  # noqa: N802
        return pb.ListModelsResponse(models=[self._model(), pb.Model(name="broken", versions=[BROKEN])])

    def GetModel(self, request, context):  # noqa: N802
        if request.model != "tiny":
            context.abort(grpc.StatusCode.NOT_FOUND, f"model {request.model!r} is not served here")
        return pb.GetModelResponse(model=self._model())

    def _model(self) -> pb.Model:
        version = pb.ModelVersion(
            version=7,
            state="READY",
            in_features=4,
            out_features=3,
            layers=[
                pb.Layer(out_features=5, bias=True, activation="relu"),
                pb.Layer(out_features=3, bias=True, activation="identity"),
            ],
            output_activation="softmax",
            dtype="float32",
            parameters=43,
            labels=["ant", "bee", "[bold]cat[/bold]"],  # a label is text, never markup
            description="A tiny classifier.",
            kernels=[
                pb.Kernel(variant=pb.FUSED, backend="cpu", device="cpu", strategy="gemv", isa="avx2",
                          dtype="float32", threads=2, reason="fastest of cpu, torch"),
                pb.Kernel(variant=pb.UNFUSED, backend="eager", device="cpu", strategy="layers",
                          dtype="float32", threads=2, reason="the baseline"),
            ],
            example=[1, 2, 3, 4],
            variant=pb.FUSED,
            outputs=[pb.Output(name="output", value="layers.1", width=3)],
            summary="4-5-3 relu+softmax",
        )  # fmt: skip
        return pb.Model(name="tiny", default_version=7, versions=[version])


BROKEN = pb.ModelVersion(version=1, state="UNAVAILABLE", reason="model.safetensors: tensor is missing")
