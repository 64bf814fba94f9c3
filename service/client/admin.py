"""The client of a server's admin port: reads and changes policies and versions, records traces. Blocking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import grpc

from fused_mlp.protos import admin_pb2 as pb
from fused_mlp.protos.stubs import Stub
from fused_mlp.protos.variants import variant_number
from fused_mlp.service.client.calls import ONCE
from fused_mlp.service.client.channel import Tls
from fused_mlp.service.client.connection import Connection
from fused_mlp.service.client.live_trace import LiveTrace, read_trace
from fused_mlp.service.client.model_info import ModelInfo, read_model
from fused_mlp.service.client.prediction import variant_name
from fused_mlp.service.variant import Variant

OnMismatch = Literal["log", "unfused"]
Precision = Literal["float32", "bfloat16", "int8"]  # a client needs nothing of models/
_ON_MISMATCH: dict[OnMismatch, Any] = {"log": pb.ON_MISMATCH_LOG, "unfused": pb.ON_MISMATCH_UNFUSED}


@dataclass(frozen=True)
class FallbackInfo:
    """A version that answers unfused although its policy asks for fused."""

    version: int
    reason: str
    detail: str


@dataclass(frozen=True)
class PolicyInfo:
    """Which variant answers a model's requests; `model` is empty for the default of models loaded later."""

    model: str
    variant: Variant
    split: float
    allow_override: bool
    shadow: float
    on_mismatch: OnMismatch
    weight: float = 1.0
    precision: str = "float32"
    version: str = "latest"  # answers requests that name none
    versions: str = "all"  # those served
    default_version: int = 0  # of a model that is served
    fallbacks: tuple[FallbackInfo, ...] = ()


class AdminClient(Connection):
    """with AdminClient("127.0.0.1:8003") as admin: admin.set_policy("digits", split=0.1)"""

    def __init__(
        self,
        target: str = "127.0.0.1:8003",
        *,
        timeout_s: float | None = 10.0,
        tls: Tls | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(target, timeout_s, ONCE, tls, metadata)
        self._admin = Stub(self._channel, pb, "Admin")

    def policies(self, model: str = "") -> list[PolicyInfo]:
        """The policy of one model; without a name the default policy, then those of all models."""
        response = self._call(self._admin.GetPolicy, pb.GetPolicyRequest(model=model))
        return _read(response, with_default=not model)

    def set_policy(
        self,
        model: str = "",
        *,
        variant: Variant | None = None,
        split: float | None = None,
        allow_override: bool | None = None,
        shadow: float | None = None,
        on_mismatch: OnMismatch | None = None,
        weight: float | None = None,
        precision: Precision | None = None,
        versions: str | None = None,
    ) -> list[PolicyInfo]:
        """Change the given fields, of one model or of all and the default. Returns the policies now in force."""
        change = pb.PolicyChange(
            split=split,
            allow_override=allow_override,
            shadow=shadow,
            weight=weight,
            precision=precision,
            versions=versions,
        )
        if variant is not None:
            change.variant = variant_number(variant)
        if on_mismatch is not None:
            change.on_mismatch = _ON_MISMATCH[on_mismatch]
        response = self._call(self._admin.SetPolicy, pb.SetPolicyRequest(model=model, change=change))
        return _read(response, with_default=not model)

    def load(self, model: str) -> ModelInfo:
        """Have the server serve what the repository holds of a model now."""
        return read_model(self._call(self._admin.LoadModel, pb.LoadModelRequest(model=model)).model)

    def unload(self, model: str) -> None:
        """Until it is loaded again."""
        self._call(self._admin.UnloadModel, pb.UnloadModelRequest(model=model))

    def pin(self, model: str, version: int | None = None) -> ModelInfo:
        """Which version answers requests that name none: the default one now if None, the highest if 0."""
        if version is None:
            (policy,) = self.policies(model)
            version = policy.default_version
        request = pb.PinVersionRequest(model=model, version=version)
        return read_model(self._call(self._admin.PinVersion, request).model)

    def roll_back(self, model: str) -> ModelInfo:
        """To the version below the default one, which is pinned."""
        return read_model(self._call(self._admin.RollBack, pb.RollBackRequest(model=model)).model)

    def trace(self, seconds: float, spans_per_thread: int = 0) -> LiveTrace:
        """Trace the requests of the next seconds: when each phase of each request began and ended."""
        request = pb.TraceRequest(seconds=seconds, spans_per_thread=spans_per_thread)
        try:
            chunks = self._admin.Trace(
                request, timeout=seconds + (self._calls.timeout_s or 60), metadata=self._calls.headers(None)
            )
            return read_trace(chunks)
        except grpc.RpcError as error:
            raise self._calls.error(error) from None


def _read(response: Any, *, with_default: bool) -> list[PolicyInfo]:
    models = [
        _policy(each.model, each.policy, each.fallbacks, each.default_version) for each in response.models
    ]
    return [_policy("", response.defaults), *models] if with_default else models


def _policy(model: str, policy: Any, fallbacks: Any = (), default_version: int = 0) -> PolicyInfo:
    names = {number: name for name, number in _ON_MISMATCH.items()}
    return PolicyInfo(
        model=model,
        variant=variant_name(policy.variant),
        split=policy.split,
        allow_override=policy.allow_override,
        shadow=policy.shadow,
        on_mismatch=names[policy.on_mismatch],
        weight=policy.weight,
        precision=policy.precision or "float32",
        version=policy.version or "latest",
        versions=policy.versions or "all",
        default_version=default_version,
        fallbacks=tuple(FallbackInfo(f.version, f.reason, f.detail) for f in fallbacks),
    )
