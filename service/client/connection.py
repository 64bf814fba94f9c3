# SPDX-License-Identifier: Apache-2.0
"""One channel, and calls over it with deadline, retries and metadata. The blocking clients share a Connection; the
asyncio client differs only in how it waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias, cast

import grpc

from fused_mlp.protos import health_pb2
from fused_mlp.service.client.channel import Balancing, Tls, key_metadata, open_channel
from fused_mlp.service.client.errors import PredictError
from fused_mlp.service.client.retry import Attempts, RetryPolicy

HealthStatus: TypeAlias = Literal["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"]

ONCE = RetryPolicy(attempts=1)
# Until the caller's deadline, often enough to notice a server soon after it is up.
UNTIL_READY = RetryPolicy(attempts=1_000_000, first_wait_s=0.05, longest_wait_s=0.25)


@dataclass(frozen=True)
class Calls:
    target: str
    timeout_s: float | None
    retry: RetryPolicy
    metadata: Mapping[str, str] = field(default_factory=dict)
    secure: bool = False  # over TLS

    def attempts(self, timeout_s: float | None, policy: RetryPolicy | None = None) -> Attempts:
        return Attempts(policy or self.retry, self.timeout_s if timeout_s is None else timeout_s)

    def headers(self, metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
        """The client's metadata, overridden by that of the call; gRPC requires keys in lower case."""
        merged = {**self.metadata, **(metadata or {})}
        return tuple((key.lower(), value) for key, value in merged.items())

    def error(self, error: grpc.RpcError, request_id: str = "") -> PredictError:
        return PredictError.from_rpc(error, target=self.target, request_id=request_id, secure=self.secure)

    def require_serving(self, status: HealthStatus, model: str) -> None:
        """Raise for any health but SERVING, so that `ready` tries again."""
        if status != "SERVING":
            what = f"model {model!r}" if model else "the server"
            raise PredictError(
                grpc.StatusCode.UNAVAILABLE, f"{what} at {self.target} is {status}", target=self.target
            )


def read_health(response: health_pb2.HealthCheckResponse) -> HealthStatus:
    return cast("HealthStatus", health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


class Connection:
    def __init__(
        self,
        target: str,
        timeout_s: float | None,
        retry: RetryPolicy,
        tls: Tls | None,
        metadata: Mapping[str, str] | None,
        *,
        api_key: str | None = None,
        balancing: Balancing = "pick_first",
    ) -> None:
        shown = {**key_metadata(api_key), **(metadata or {})}
        self._calls = Calls(target, timeout_s, retry, shown, tls is not None)
        self._channel = open_channel(target, tls, balancing)

    @property
    def target(self) -> str:
        """The address that was given."""
        return self._calls.target

    def close(self) -> None:
        """End the connection; calls that are still open fail."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self,
        method: Any,
        request: Any,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
        *,
        policy: RetryPolicy | None = None,
        request_id: str = "",
    ) -> Any:
        attempts = self._calls.attempts(timeout_s, policy)
        headers = self._calls.headers(metadata)
        while True:
            try:
                return method(request, timeout=attempts.remaining_s(), metadata=headers)
            except grpc.RpcError as error:
                wait_s = attempts.wait_after(self._calls.error(error, request_id))
            time.sleep(wait_s)
