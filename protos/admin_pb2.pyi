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
    __slots__ = ("variant", "split", "allow_override", "shadow", "on_mismatch", "weight", "precision", "version", "versions")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    ON_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    variant: _fused_mlp_pb2.Variant
    split: float
    allow_override: bool
    shadow: float
    on_mismatch: OnMismatch
    weight: float
    precision: str
    version: str
    versions: str
    def __init__(self, variant: _Optional[_Union[_fused_mlp_pb2.Variant, str]] = ..., split: _Optional[float] = ..., allow_override: _Optional[bool] = ..., shadow: _Optional[float] = ..., on_mismatch: _Optional[_Union[OnMismatch, str]] = ..., weight: _Optional[float] = ..., precision: _Optional[str] = ..., version: _Optional[str] = ..., versions: _Optional[str] = ...) -> None: ...

class PolicyChange(_message.Message):
    __slots__ = ("variant", "split", "allow_override", "shadow", "on_mismatch", "weight", "precision", "version", "versions")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    ON_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    variant: _fused_mlp_pb2.Variant
    split: float
    allow_override: bool
    shadow: float
    on_mismatch: OnMismatch
    weight: float
    precision: str
    version: str
    versions: str
    def __init__(self, variant: _Optional[_Union[_fused_mlp_pb2.Variant, str]] = ..., split: _Optional[float] = ..., allow_override: _Optional[bool] = ..., shadow: _Optional[float] = ..., on_mismatch: _Optional[_Union[OnMismatch, str]] = ..., weight: _Optional[float] = ..., precision: _Optional[str] = ..., version: _Optional[str] = ..., versions: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("model", "policy", "fallbacks", "default_version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    policy: Policy
    fallbacks: _containers.RepeatedCompositeFieldContainer[Fallback]
    default_version: int
    def __init__(self, model: _Optional[str] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., fallbacks: _Optional[_Iterable[_Union[Fallback, _Mapping]]] = ..., default_version: _Optional[int] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("defaults", "models")
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    defaults: Policy
    models: _containers.RepeatedCompositeFieldContainer[ModelPolicy]
    def __init__(self, defaults: _Optional[_Union[Policy, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelPolicy, _Mapping]]] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("model", "change")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    change: PolicyChange
    def __init__(self, model: _Optional[str] = ..., change: _Optional[_Union[PolicyChange, _Mapping]] = ...) -> None: ...

class SetPolicyResponse(_message.Message):
    __slots__ = ("defaults", "models")
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    defaults: Policy
    models: _containers.RepeatedCompositeFieldContainer[ModelPolicy]
    def __init__(self, defaults: _Optional[_Union[Policy, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelPolicy, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: _fused_mlp_pb2.Model
    def __init__(self, model: _Optional[_Union[_fused_mlp_pb2.Model, _Mapping]] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("seconds", "spans_per_thread")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPANS_PER_THREAD_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    spans_per_thread: int
    def __init__(self, seconds: _Optional[float] = ..., spans_per_thread: _Optional[int] = ...) -> None: ...

class TraceSpan(_message.Message):
    __slots__ = ("phase", "thread", "request", "rows", "start_ns", "duration_ns", "lane")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    phase: TracePhase
    thread: int
    request: int
    rows: int
    start_ns: int
    duration_ns: int
    lane: int
    def __init__(self, phase: _Optional[_Union[TracePhase, str]] = ..., thread: _Optional[int] = ..., request: _Optional[int] = ..., rows: _Optional[int] = ..., start_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ..., lane: _Optional[int] = ...) -> None: ...

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
