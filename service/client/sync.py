# SPDX-License-Identifier: Apache-2.0
"""The blocking client. Threads may share it; a forked process must open its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos import health_pb2
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client.channel import Balancing, Tls
from fused_mlp.service.client.connection import ONCE, UNTIL_READY, Connection, HealthStatus, read_health
from fused_mlp.service.client.errors import PredictError
from fused_mlp.service.client.model_info import ModelInfo, read_model
from fused_mlp.service.client.prediction import Prediction, StreamItem, build_request, read_prediction
from fused_mlp.service.client.propagation import client_span
from fused_mlp.service.client.retry import RetryPolicy
from fused_mlp.service.client.stream import OpenRequests
from fused_mlp.variant import Variant

if TYPE_CHECKING:
    from fused_mlp.service.client.tensors import Rows


class Client(Connection):
    """A connection to a server, or to several. Threads may share it; a forked process must open its own.

    Args:
        target: HOST:PORT. For several servers a name that resolves to all of them (`dns:///models.internal:8001`) or
            their addresses (`ipv4:10.0.0.1:8001,10.0.0.2:8001`).
        timeout_s: The deadline of a call that names none, retries included. None: no deadline.
        retry: When a failed call is tried again. Default: `RetryPolicy()`.
        tls: Connect with TLS. Default: without.
        metadata: Sent with every call.
        api_key: The key that tells the server who is calling, of `fused-mlp keys new`. Default: none.
        balancing: Which of several servers gets a call: "pick_first", all to one; "round_robin", each in turn;
            "weighted_round_robin", the busy ones fewer. Servers that are not healthy get none.

    Examples:
        >>> with Client("127.0.0.1:8001") as client:
        ...     client.predict("digits", np.zeros((2, 64), np.float32)).output.shape
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
        super().__init__(
            target, timeout_s, retry or RetryPolicy(), tls, metadata, api_key=api_key, balancing=balancing
        )
        self._inference = Stub(self._channel, pb, "Inference")
        self._health = Stub(self._channel, health_pb2, "Health")

    def predict(
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
        """Call a model. Blocks until it has answered, or the deadline has passed.

        Args:
            model: Its name.
            x: (width,), (rows, width) or (..., rows, width). A model that flattens its input also takes it in its own
                shape: (rows, 1, 28, 28). numpy arrays and torch tensors travel in their own float dtype and come back
                in it (bfloat16 as float32, since numpy has none); integers and lists travel as float32. Of a model
                with named inputs: a dict of arrays by name, (rows,) or (rows, k) each, a data frame of pandas or
                polars, or a list with a dict for each row; ids travel as whole numbers, strings as they are.
            version: Which version answers. Default: as the server's policy says.
            variant: "fused" or "unfused", where the policy allows requests to choose. Default: as the policy says.
            arm: A version or label and a variant, in place of both: "3/fused", "previous", "stable/unfused".
            output: The name of one of several outputs. Default: the first. "*" asks for all, which are in the
                prediction's `outputs`.
            shared: Inputs that all rows of `x` have in common, by name: `{"user": 7}`. They are sent and computed
                once.
            top_k: Answer only so many rows, those with the largest `output`. Of an output of several columns: the
                largest columns of each row.
            min_score: Answer only rows whose `output` is at least that, the largest first.
            ids: The name of an input with one id for each row: the ids of the best rows are the prediction's `ids`.
            timeout_s: The deadline of this call, retries included. Default: the client's.
            request_id: A name for this call, which is in its answer or error. Default: none.
            metadata: Sent with this call, over that of the client.

        Returns:
            The answer. Its `output` keeps every dimension of `x` but the last; it is (rows,) if the model answers
                that.

        Raises:
            PredictError: The call failed, after all retries.
            ValueError: `variant` is none, or `x` a single number.
            TypeError: `x` is no array of numbers, nor inputs by name.
        """
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
            response = self._call(
                self._inference.Predict, request, timeout_s, dict(headers), request_id=request_id
            )
        return read_prediction(response, one_row, self.target)

    def stream(
        self,
        model: str,
        inputs: Iterable[Rows],
        *,
        version: int | None = None,
        variant: Variant | None = None,
        arm: str | None = None,
        output: str | None = None,
        window: int = 64,
        timeout_s: float | None = None,
        request_id: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> Iterator[StreamItem]:
        """Call a model with many inputs over one stream, and yield answers as they are ready, not in order.

        A bad input ends in its own item's error and the stream goes on. A broken stream raises PredictError and is
        not retried. Leaving the loop early ends the stream.

        Args:
            model: Its name.
            inputs: Each as `x` of `predict`. Read in another thread, as fast as answers are taken.
            version: As for `predict`.
            variant: As for `predict`.
            arm: As for `predict`.
            output: As for `predict`.
            window: At most so many inputs are sent and not yet taken from the iterator.
            timeout_s: The deadline of the whole stream. Default: none.
            request_id: Items have the ids `<request_id>-<index>`. Default: a random one.
            metadata: As for `predict`.

        Yields:
            One item per input, with the position of its input.

        Raises:
            PredictError: The stream broke.

        Examples:
            >>> rows = [np.zeros(64, np.float32) for _ in range(3)]
            >>> with Client("127.0.0.1:8001") as client:
            ...     answers = {item.index: item.unwrap().output for item in client.stream("digits", rows)}
            >>> sorted(answers)
            [0, 1, 2]
        """
        requests = OpenRequests(self.target, model, version, variant, request_id, output=output, arm=arm)
        feed = _Feed(inputs, requests, window)
        headers = self._calls.headers(metadata)
        with client_span("fused_mlp.v1.Inference/PredictStream", headers, self.target) as headers:
            call = self._inference.PredictStream(iter(feed), timeout=timeout_s, metadata=headers)
            try:
                for response in call:
                    feed.slots.release()
                    yield requests.resolve(response)
                if feed.error:
                    raise feed.error
                requests.require_none()
            except grpc.RpcError as error:
                raise self._calls.error(error) from None
            finally:
                feed.close()
                call.cancel()

    def models(self, *, timeout_s: float | None = None) -> list[ModelInfo]:
        """List every model that the server knows, versions that could not be loaded included."""
        response = self._call(self._inference.ListModels, pb.ListModelsRequest(), timeout_s)
        return [read_model(model) for model in response.models]

    def model(self, name: str, *, version: int | None = None, timeout_s: float | None = None) -> ModelInfo:
        """Describe one model, with all its versions or the one asked for."""
        request = pb.GetModelRequest(model=name, version=version or 0)
        return read_model(self._call(self._inference.GetModel, request, timeout_s).model)

    def health(self, model: str = "", *, timeout_s: float | None = None) -> HealthStatus:
        """Ask for the health of the server, or of one model, once: an unreachable server raises at once."""
        request = health_pb2.HealthCheckRequest(service=model)
        return read_health(self._call(self._health.Check, request, timeout_s, policy=ONCE))

    def ready(self, timeout_s: float = 30.0, *, model: str = "") -> None:
        """Wait until the server, or one model, is SERVING.

        Raises:
            PredictError: It is not, within `timeout_s`; with the last reason.
        """
        attempts = self._calls.attempts(timeout_s, UNTIL_READY)
        while True:
            try:
                status = self.health(model, timeout_s=attempts.remaining_s())
                return self._calls.require_serving(status, model)
            except PredictError as error:
                wait_s = attempts.wait_until_ready(error)
            time.sleep(wait_s)


class _Feed:
    """The requests that gRPC's sender thread reads; it waits here for a free slot of the window."""

    def __init__(self, inputs: Iterable[Rows], requests: OpenRequests, window: int) -> None:
        if window < 1:
            raise ValueError(f"expected a window of at least 1, got {window}")
        self.slots = threading.Semaphore(window)
        self.error: Exception | None = None
        self._inputs = inputs
        self._requests = requests
        self._closed = False

    def __iter__(self) -> Iterator[pb.PredictRequest]:
        try:
            for x in self._inputs:
                self.slots.acquire()
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
