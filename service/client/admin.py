# SPDX-License-Identifier: Apache-2.0
"""The client of a server's admin port: reads and changes policies and versions, records traces. Blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc

from fused_mlp.protos import admin_pb2 as pb
from fused_mlp.protos.stubs import Stub
from fused_mlp.protos.variants import variant_number
from fused_mlp.service.client.channel import Tls
from fused_mlp.service.client.connection import ONCE, Connection
from fused_mlp.service.client.live_trace import LiveTrace, read_trace
from fused_mlp.service.client.model_info import ModelInfo, read_model, read_record
from fused_mlp.service.client.prediction import variant_name
from fused_mlp.variant import Variant

OnMismatch = Literal["log", "unfused"]
Precision = Literal["float32", "bfloat16", "int8"]  # the client must not import models/
_ON_MISMATCH: dict[OnMismatch, Any] = {"log": pb.ON_MISMATCH_LOG, "unfused": pb.ON_MISMATCH_UNFUSED}


@dataclass(frozen=True)
class FallbackInfo:
    """A version that answers unfused although its policy asks for fused."""

    version: int
    reason: str
    detail: str


@dataclass(frozen=True)
class CanaryInfo:
    """The last canary of a model: running, promoted or rolled_back, and why."""

    to: str
    state: str
    share: float
    text: str = ""
    reason: str = ""


@dataclass(frozen=True)
class PolicyInfo:
    """Which arms answer a model's requests; `model` is empty for the default of models loaded later."""

    model: str
    variant: Variant
    split: float
    allow_override: bool
    shadow: float
    on_mismatch: OnMismatch
    weight: float = 1.0
    precision: str = "float32"
    version: str = "latest"  # answers requests that name none
    versions: str = "all"  # the served versions
    default_version: int = 0  # of a served model
    shadow_arm: str = ""
    arms: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    fallbacks: tuple[FallbackInfo, ...] = ()
    canary: CanaryInfo | None = None
    unknown: tuple[str, ...] = ()  # arms and labels of the policy that do not exist or cannot answer


@dataclass(frozen=True)
class PolicyChanged:
    """One change of a policy, and who made it; `model` is empty for all of them."""

    time_s: float
    by: str
    model: str
    what: str


CHANGE_TIMEOUT_S = 60.0


class AdminClient(Connection):
    """A connection to a server's admin port, which changes policies and versions while it runs.

    The server needs `--admin-port`. Changes outlive the server unless `not_kept` says why not, as of the last answer.

    Args:
        target: HOST:PORT of the admin port.
        timeout_s: The deadline of a call. A change may load weights and import torch first. None: no deadline.
        tls: Connect with TLS. Default: without.
        metadata: Sent with every call, such as `{"authorization": "Bearer ..."}`.

    Examples:
        >>> with AdminClient("127.0.0.1:8003") as admin:
        ...     admin.set_policy("digits", split=0.1)[0].split
        0.1
    """

    def __init__(
        self,
        target: str = "127.0.0.1:8003",
        *,
        timeout_s: float | None = CHANGE_TIMEOUT_S,
        tls: Tls | None = None,
        metadata: Mapping[str, str] | None = None,
        api_key: str | None = None,
    ) -> None:
        super().__init__(target, timeout_s, ONCE, tls, metadata, api_key=api_key)
        self._admin = Stub(self._channel, pb, "Admin")
        self.not_kept = ""

    def policies(self, model: str = "") -> list[PolicyInfo]:
        """Return one model's policy; without a name, the default policy and those of all models."""
        response = self._call(self._admin.GetPolicy, pb.GetPolicyRequest(model=model))
        self.not_kept = response.not_kept
        return _read(response, with_default=not model)

    def unknown_models(self) -> list[str]:
        """A line for each model that a policy names and that is not served."""
        return list(self._call(self._admin.GetPolicy, pb.GetPolicyRequest()).unknown)

    def history(self, model: str = "") -> list[PolicyChanged]:
        """Changes of policies since the server started, the newest last."""
        response = self._call(self._admin.GetPolicy, pb.GetPolicyRequest(model=model))
        return [read_record(PolicyChanged, each) for each in response.history]

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
        version: str | int | None = None,
        shadow_arm: str | None = None,
        arms: Mapping[str, float] | None = None,
        labels: Mapping[str, int] | None = None,
        versions: str | None = None,
    ) -> list[PolicyInfo]:
        """Change the given fields, of one model or of all and the default; `arms` and `labels` as a whole. Returns the
        policies now in force."""
        change = pb.PolicyChange(
            split=split,
            allow_override=allow_override,
            shadow=shadow,
            shadow_arm=shadow_arm,
            weight=weight,
            precision=precision,
            versions=versions,
        )
        if version is not None:
            change.version = str(version)
        if arms is not None:
            shares = [pb.ArmShare(arm=arm, share=share) for arm, share in arms.items()]
            change.arms.CopyFrom(pb.ArmShares(shares=shares))
        if labels is not None:
            change.labels.CopyFrom(pb.Labels(versions=labels))
        if variant is not None:
            change.variant = variant_number(variant)
        if on_mismatch is not None:
            change.on_mismatch = _ON_MISMATCH[on_mismatch]
        return self._set(pb.SetPolicyRequest(model=model, change=change))

    def unset_policy(self, model: str = "", fields: Sequence[str] = ("*",)) -> list[PolicyInfo]:
        """Take changes back, of one model or of all: these fields, or all of them."""
        return self._set(pb.SetPolicyRequest(model=model, unset=fields))

    def _set(self, request: pb.SetPolicyRequest) -> list[PolicyInfo]:
        response = self._call(self._admin.SetPolicy, request)
        self.not_kept = response.not_kept
        return _read(response, with_default=not request.model)

    def start_canary(
        self,
        model: str,
        to: str,
        *,
        steps: Sequence[float] = (),
        interval_s: float = 0,
        max_error_increase: float = 0,
        max_p99_ratio: float = 0,
        min_requests: int = 0,
    ) -> PolicyInfo:
        """Raise an arm's share step by step, in percent, while it answers as well as the default arm. Omitted arguments
        have the server's defaults. The server continues without the client: `policies(model)` shows the progress."""
        plan = pb.Canary(
            to=to,
            steps=steps,
            interval_s=interval_s,
            max_error_increase=max_error_increase,
            max_p99_ratio=max_p99_ratio,
            min_requests=min_requests,
        )
        return self._set_canary(model, plan)

    def stop_canary(self, model: str) -> PolicyInfo:
        """End a canary: all requests go to the default arm again."""
        return self._set_canary(model, pb.Canary())

    def _set_canary(self, model: str, plan: pb.Canary) -> PolicyInfo:
        return self._set(pb.SetPolicyRequest(model=model, change=pb.PolicyChange(canary=plan)))[0]

    def load(self, model: str) -> ModelInfo:
        """Have the server load a model's current versions from the repository."""
        return read_model(self._call(self._admin.LoadModel, pb.LoadModelRequest(model=model)).model)

    def unload(self, model: str) -> None:
        """Stop serving a model until it is loaded again."""
        self._call(self._admin.UnloadModel, pb.UnloadModelRequest(model=model))

    def pin(self, model: str, version: int | None = None) -> ModelInfo:
        """Which version answers requests that name none: the default one now if None, the highest if 0."""
        if version is None:
            (policy,) = self.policies(model)
            version = policy.default_version
        return self._pinned(self._admin.PinVersion, pb.PinVersionRequest(model=model, version=version))

    def roll_back(self, model: str) -> ModelInfo:
        """Go back to the version below the default one, and pin it."""
        return self._pinned(self._admin.RollBack, pb.RollBackRequest(model=model))

    def _pinned(self, method: Any, request: Any) -> ModelInfo:
        answer = self._call(method, request)
        self.not_kept = answer.not_kept
        return read_model(answer.model)

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
    models = [_policy(each.model, each.policy, each) for each in response.models]
    return [_policy("", response.defaults), *models] if with_default else models


def _policy(name: str, policy: Any, model: Any = None) -> PolicyInfo:
    """`model`: a ModelPolicy; None for the default of models loaded later."""
    on_mismatch = {number: name for name, number in _ON_MISMATCH.items()}
    canary = model.canary if model is not None and model.HasField("canary") else None
    return read_record(
        PolicyInfo,
        policy,
        model=name,
        variant=variant_name(policy.variant),
        on_mismatch=on_mismatch[policy.on_mismatch],
        precision=policy.precision or "float32",
        version=policy.version or "latest",
        versions=policy.versions or "all",
        arms={each.arm: each.share for each in policy.arms.shares},
        labels=dict(policy.labels.versions),
        default_version=model.default_version if model else 0,
        fallbacks=tuple(read_record(FallbackInfo, each) for each in (model.fallbacks if model else ())),
        canary=read_record(CanaryInfo, canary) if canary is not None else None,
        unknown=tuple(model.unknown) if model else (),
    )
