# SPDX-License-Identifier: Apache-2.0
"""The asyncio client: the methods of `Client`, awaited. Belongs to the event loop it was made in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos import health_pb2
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client.channel import Balancing, Tls, channel_options, key_metadata
from fused_mlp.service.client.connection import ONCE, UNTIL_READY, Calls, HealthStatus, read_health
from fused_mlp.service.client.errors import PredictError
from fused_mlp.service.client.model_info import ModelInfo, read_model
from fused_mlp.service.client.prediction import Prediction, StreamItem, build_request, read_prediction
from fused_mlp.service.client.propagation import client_span
from fused_mlp.service.client.retry import RetryPolicy
from fused_mlp.service.client.stream import OpenRequests
from fused_mlp.variant import Variant

if TYPE_CHECKING:
    from fused_mlp.service.client.tensors import Rows


class AsyncClient:
    """`Client` for asyncio: the same options and methods, awaited. Belongs to the event loop that it was made in.

    Examples:
        >>> async def main():
        ...     async with AsyncClient("127.0.0.1:8001") as client:
        ...         return await client.predict("digits", np.zeros((2, 64), np.float32))
        >>> asyncio.run(main()).output.shape
        (2, 10)
    """

    def __init__(
        self,
        target: str = "127.0.0.1:8001",
        *,
        timeout_s: float | None = 10.0,
        retry: RetryPolicy | None = None,
        tls: Tls | None = None,
        metadata: Mapping[str, str] | None = None,
        api_key: str | None = None,
        balancing: Balancing = "pick_first",
    ) -> None:
        shown = {**key_metadata(api_key), **(metadata or {})}
        self._calls = Calls(target, timeout_s, retry or RetryPolicy(), shown, tls is not None)
        options = channel_options(tls, balancing)
        self._channel = (
            grpc.aio.secure_channel(target, tls.credentials(), options)
            if tls
            else grpc.aio.insecure_channel(target, options)
        )
        self._inference = Stub(self._channel, pb, "Inference")
        self._health = Stub(self._channel, health_pb2, "Health")

    @property
    def target(self) -> str:
        """The address that was given."""
        return self._calls.target

    async def predict(
        self,
        model: str,
        x: Rows,
        *,
        version: int | None = None,
        variant: Variant | None = None,
        arm: str | None = None,
        output: str | None = None,
        shared: Mapping[str, Any] | None = None,
        top_k: int | None = None,
        min_score: float | None = None,
        ids: str | None = None,
        timeout_s: float | None = None,
        request_id: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> Prediction:
        """Call a model, as `Client.predict`."""
        request, one_row = build_request(
            model,
            x,
            version,
            variant,
            request_id,
            output=output,
            arm=arm,
            shared=shared,
            top_k=top_k,
            min_score=min_score,
            ids=ids,
        )
        headers = self._calls.headers(metadata)
        with client_span("fused_mlp.v1.Inference/Predict", headers, self.target) as headers:
            response = await self._call(
                self._inference.Predict, request, timeout_s, dict(headers), request_id=request_id
            )
        return read_prediction(response, one_row, self.target)

    async def stream(
        self,
        model: str,
        inputs: Iterable[Rows] | AsyncIterable[Rows],
        *,
        version: int | None = None,
        variant: Variant | None = None,
        arm: str | None = None,
        output: str | None = None,
        window: int = 64,
        timeout_s: float | None = None,
        request_id: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[StreamItem]:
        """Call a model with many inputs, as `Client.stream`; `inputs` may be asynchronous too."""
        requests = OpenRequests(self.target, model, version, variant, request_id, output=output, arm=arm)
        feed = _Feed(inputs, requests, window)
        headers = self._calls.headers(metadata)
        with client_span("fused_mlp.v1.Inference/PredictStream", headers, self.target) as headers:
            call = self._inference.PredictStream(aiter(feed), timeout=timeout_s, metadata=headers)
            status = _FirstStatus(call)
            try:
                async for response in call:
                    feed.slots.release()
                    yield requests.resolve(response)
                if feed.error:
                    raise feed.error
                requests.require_none()
            except grpc.RpcError as error:
                raise self._calls.error(status.error or error) from None
            finally:
                feed.close()
                call.cancel()

    async def models(self, *, timeout_s: float | None = None) -> list[ModelInfo]:
        """List every model that the server knows, versions that could not be loaded included."""
        response = await self._call(self._inference.ListModels, pb.ListModelsRequest(), timeout_s)
        return [read_model(model) for model in response.models]

    async def model(
        self, name: str, *, version: int | None = None, timeout_s: float | None = None
    ) -> ModelInfo:
        """Describe one model, with all its versions or the one asked for."""
        request = pb.GetModelRequest(model=name, version=version or 0)
        return read_model((await self._call(self._inference.GetModel, request, timeout_s)).model)

    async def health(self, model: str = "", *, timeout_s: float | None = None) -> HealthStatus:
        """Ask for the health of the server, or of one model, once."""
        request = health_pb2.HealthCheckRequest(service=model)
        return read_health(await self._call(self._health.Check, request, timeout_s, policy=ONCE))

    async def ready(self, timeout_s: float = 30.0, *, model: str = "") -> None:
        """Wait until the server, or one model, is SERVING, as `Client.ready`."""
        attempts = self._calls.attempts(timeout_s, UNTIL_READY)
        while True:
            try:
                status = await self.health(model, timeout_s=attempts.remaining_s())
                return self._calls.require_serving(status, model)
            except PredictError as error:
                wait_s = attempts.wait_until_ready(error)
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        """End the connection; calls that are still open fail."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(
        self,
        method: Any,
        request: Any,
        timeout_s: float | None,
        metadata: Mapping[str, str] | None = None,
        *,
        policy: RetryPolicy | None = None,
        request_id: str = "",
    ) -> Any:
        attempts = self._calls.attempts(timeout_s, policy)
        headers = self._calls.headers(metadata)
        while True:
            try:
                return await method(request, timeout=attempts.remaining_s(), metadata=headers)
            except grpc.RpcError as error:
                wait_s = attempts.wait_after(self._calls.error(error, request_id))
            await asyncio.sleep(wait_s)


class _Feed:
    """The requests that gRPC's sender task reads; it waits here for a free slot of the window."""

    def __init__(
        self, inputs: Iterable[Rows] | AsyncIterable[Rows], requests: OpenRequests, window: int
    ) -> None:
        if window < 1:
            raise ValueError(f"expected a window of at least 1, got {window}")
        self.slots = asyncio.Semaphore(window)
        self.error: Exception | None = None
        self._inputs = inputs if isinstance(inputs, AsyncIterable) else _awaited(inputs)
        self._requests = requests
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[pb.PredictRequest]:
        try:
            async for x in self._inputs:
                await self.slots.acquire()
                if self._closed:
                    return
                yield self._requests.add(x)
        except (
            Exception
        ) as error:  # from the caller's iterable or input: raised again to the caller of stream()
            self.error = error

    def close(self) -> None:
        """Release a sender that waits."""
        self._closed = True
        self.slots.release()


class _FirstStatus:
    """The first status of a stream. When a write fails just after the server ended the stream, grpc.aio replaces the
    server's status with an INTERNAL of its own (grpc/grpc#36066)."""

    def __init__(self, call: Any) -> None:
        self.error: grpc.RpcError | None = None
        call.add_done_callback(self._note)

    def _note(self, call: Any) -> None:
        code, trailers, details = map(_at_once, (call.code(), call.trailing_metadata(), call.details()))
        self.error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details)


def _at_once(ready: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that is known not to wait, without giving control to the event loop."""
    try:
        ready.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError(f"{ready} had to wait")


async def _awaited(inputs: Iterable[Rows]) -> AsyncIterator[Rows]:
    for x in inputs:
        yield x
