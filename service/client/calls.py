# SPDX-License-Identifier: Apache-2.0
"""What every call of a client shares: the target, the default deadline, retries and metadata.
Used by both clients, which differ only in how they wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

import grpc

from fused_mlp.protos import health_pb2
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
