# SPDX-License-Identifier: Apache-2.0
"""One channel, and calls over it with deadline, retries and metadata: what the blocking clients share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

import grpc

from fused_mlp.service.client.calls import Calls
from fused_mlp.service.client.channel import Balancing, Tls, open_channel
from fused_mlp.service.client.retry import RetryPolicy


class Connection:
    def __init__(
        self,
        target: str,
        timeout_s: float | None,
        retry: RetryPolicy,
        tls: Tls | None,
        metadata: Mapping[str, str] | None,
        *,
        balancing: Balancing = "pick_first",
    ) -> None:
        self._calls = Calls(target, timeout_s, retry, metadata or {}, tls is not None)
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
