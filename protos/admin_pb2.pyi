from fused_mlp.protos import fused_mlp_pb2 as _fused_mlp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OnMismatch(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_MISMATCH_UNSPECIFIED: _ClassVar[OnMismatch]
    ON_MISMATCH_LOG: _ClassVar[OnMismatch]
    ON_MISMATCH_UNFUSED: _ClassVar[OnMismatch]

class TracePhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECODE: _ClassVar[TracePhase]
    QUEUE: _ClassVar[TracePhase]
    GATHER: _ClassVar[TracePhase]
    KERNEL: _ClassVar[TracePhase]
    SCATTER: _ClassVar[TracePhase]
    ENCODE: _ClassVar[TracePhase]
ON_MISMATCH_UNSPECIFIED: OnMismatch
ON_MISMATCH_LOG: OnMismatch
ON_MISMATCH_UNFUSED: OnMismatch
DECODE: TracePhase
QUEUE: TracePhase
GATHER: TracePhase
KERNEL: TracePhase
SCATTER: TracePhase
ENCODE: TracePhase

class Policy(_message.Message):
    __slots__ = ("variant", "split", "allow_override", "shadow", "on_mismatch", "weight", "precision", "version", "arms", "labels", "canary", "shadow_arm", "versions")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    ON_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ARMS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    SHADOW_ARM_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    variant: _fused_mlp_pb2.Variant
    split: float
    allow_override: bool
    shadow: float
    on_mismatch: OnMismatch
    weight: float
    precision: str
    version: str
    arms: ArmShares
    labels: Labels
    canary: Canary
    shadow_arm: str
    versions: str
    def __init__(self, variant: _Optional[_Union[_fused_mlp_pb2.Variant, str]] = ..., split: _Optional[float] = ..., allow_override: _Optional[bool] = ..., shadow: _Optional[float] = ..., on_mismatch: _Optional[_Union[OnMismatch, str]] = ..., weight: _Optional[float] = ..., precision: _Optional[str] = ..., version: _Optional[str] = ..., arms: _Optional[_Union[ArmShares, _Mapping]] = ..., labels: _Optional[_Union[Labels, _Mapping]] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ..., shadow_arm: _Optional[str] = ..., versions: _Optional[str] = ...) -> None: ...

class Canary(_message.Message):
    __slots__ = ("to", "steps", "interval_s", "max_error_increase", "max_p99_ratio", "min_requests")
    TO_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    MAX_ERROR_INCREASE_FIELD_NUMBER: _ClassVar[int]
    MAX_P99_RATIO_FIELD_NUMBER: _ClassVar[int]
    MIN_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    to: str
    steps: _containers.RepeatedScalarFieldContainer[float]
    interval_s: float
    max_error_increase: float
    max_p99_ratio: float
    min_requests: int
    def __init__(self, to: _Optional[str] = ..., steps: _Optional[_Iterable[float]] = ..., interval_s: _Optional[float] = ..., max_error_increase: _Optional[float] = ..., max_p99_ratio: _Optional[float] = ..., min_requests: _Optional[int] = ...) -> None: ...

class CanaryStatus(_message.Message):
    __slots__ = ("to", "state", "share", "text", "reason")
    TO_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    to: str
    state: str
    share: float
    text: str
    reason: str
    def __init__(self, to: _Optional[str] = ..., state: _Optional[str] = ..., share: _Optional[float] = ..., text: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ArmShares(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[ArmShare]
    def __init__(self, shares: _Optional[_Iterable[_Union[ArmShare, _Mapping]]] = ...) -> None: ...

class ArmShare(_message.Message):
    __slots__ = ("arm", "share")
    ARM_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    arm: str
    share: float
    def __init__(self, arm: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class Labels(_message.Message):
    __slots__ = ("versions",)
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.ScalarMap[str, int]
    def __init__(self, versions: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PolicyChange(_message.Message):
    __slots__ = ("variant", "split", "allow_override", "shadow", "on_mismatch", "weight", "precision", "version", "arms", "labels", "canary", "shadow_arm", "versions")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    ON_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ARMS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    SHADOW_ARM_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    variant: _fused_mlp_pb2.Variant
    split: float
    allow_override: bool
    shadow: float
    on_mismatch: OnMismatch
    weight: float
    precision: str
    version: str
    arms: ArmShares
    labels: Labels
    canary: Canary
    shadow_arm: str
    versions: str
    def __init__(self, variant: _Optional[_Union[_fused_mlp_pb2.Variant, str]] = ..., split: _Optional[float] = ..., allow_override: _Optional[bool] = ..., shadow: _Optional[float] = ..., on_mismatch: _Optional[_Union[OnMismatch, str]] = ..., weight: _Optional[float] = ..., precision: _Optional[str] = ..., version: _Optional[str] = ..., arms: _Optional[_Union[ArmShares, _Mapping]] = ..., labels: _Optional[_Union[Labels, _Mapping]] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ..., shadow_arm: _Optional[str] = ..., versions: _Optional[str] = ...) -> None: ...

class Fallback(_message.Message):
    __slots__ = ("version", "reason", "detail")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    version: int
    reason: str
    detail: str
    def __init__(self, version: _Optional[int] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class ModelPolicy(_message.Message):
    __slots__ = ("model", "policy", "fallbacks", "canary", "unknown", "default_version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    policy: Policy
    fallbacks: _containers.RepeatedCompositeFieldContainer[Fallback]
    canary: CanaryStatus
    unknown: _containers.RepeatedScalarFieldContainer[str]
    default_version: int
    def __init__(self, model: _Optional[str] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., fallbacks: _Optional[_Iterable[_Union[Fallback, _Mapping]]] = ..., canary: _Optional[_Union[CanaryStatus, _Mapping]] = ..., unknown: _Optional[_Iterable[str]] = ..., default_version: _Optional[int] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("defaults", "models", "history", "unknown", "not_kept")
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    NOT_KEPT_FIELD_NUMBER: _ClassVar[int]
    defaults: Policy
    models: _containers.RepeatedCompositeFieldContainer[ModelPolicy]
    history: _containers.RepeatedCompositeFieldContainer[PolicyChanged]
    unknown: _containers.RepeatedScalarFieldContainer[str]
    not_kept: str
    def __init__(self, defaults: _Optional[_Union[Policy, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelPolicy, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[PolicyChanged, _Mapping]]] = ..., unknown: _Optional[_Iterable[str]] = ..., not_kept: _Optional[str] = ...) -> None: ...

class PolicyChanged(_message.Message):
    __slots__ = ("time_s", "by", "model", "what")
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    by: str
    model: str
    what: str
    def __init__(self, time_s: _Optional[float] = ..., by: _Optional[str] = ..., model: _Optional[str] = ..., what: _Optional[str] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("model", "change", "unset")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    model: str
    change: PolicyChange
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., change: _Optional[_Union[PolicyChange, _Mapping]] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...

class SetPolicyResponse(_message.Message):
    __slots__ = ("defaults", "models", "kept", "not_kept")
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    NOT_KEPT_FIELD_NUMBER: _ClassVar[int]
    defaults: Policy
    models: _containers.RepeatedCompositeFieldContainer[ModelPolicy]
    kept: bool
    not_kept: str
    def __init__(self, defaults: _Optional[_Union[Policy, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelPolicy, _Mapping]]] = ..., kept: _Optional[bool] = ..., not_kept: _Optional[str] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PinVersionRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class RollBackRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ModelAnswer(_message.Message):
    __slots__ = ("model", "kept", "not_kept")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    NOT_KEPT_FIELD_NUMBER: _ClassVar[int]
    model: _fused_mlp_pb2.Model
    kept: bool
    not_kept: str
    def __init__(self, model: _Optional[_Union[_fused_mlp_pb2.Model, _Mapping]] = ..., kept: _Optional[bool] = ..., not_kept: _Optional[str] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("seconds", "spans_per_thread")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPANS_PER_THREAD_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    spans_per_thread: int
    def __init__(self, seconds: _Optional[float] = ..., spans_per_thread: _Optional[int] = ...) -> None: ...

class TraceSpan(_message.Message):
    __slots__ = ("phase", "thread", "request", "rows", "start_ns", "duration_ns", "lane", "trace_id")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    phase: TracePhase
    thread: int
    request: int
    rows: int
    start_ns: int
    duration_ns: int
    lane: int
    trace_id: str
    def __init__(self, phase: _Optional[_Union[TracePhase, str]] = ..., thread: _Optional[int] = ..., request: _Optional[int] = ..., rows: _Optional[int] = ..., start_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ..., lane: _Optional[int] = ..., trace_id: _Optional[str] = ...) -> None: ...

class TraceChunk(_message.Message):
    __slots__ = ("spans", "threads", "lanes", "dropped")
    class ThreadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    SPANS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[TraceSpan]
    threads: _containers.ScalarMap[int, str]
    lanes: _containers.RepeatedScalarFieldContainer[str]
    dropped: int
    def __init__(self, spans: _Optional[_Iterable[_Union[TraceSpan, _Mapping]]] = ..., threads: _Optional[_Mapping[int, str]] = ..., lanes: _Optional[_Iterable[str]] = ..., dropped: _Optional[int] = ...) -> None: ...
