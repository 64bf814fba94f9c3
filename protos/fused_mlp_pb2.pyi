from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    FP32: _ClassVar[DataType]
    FP16: _ClassVar[DataType]
    BF16: _ClassVar[DataType]
    FP64: _ClassVar[DataType]
    INT32: _ClassVar[DataType]
    INT64: _ClassVar[DataType]
    BOOL: _ClassVar[DataType]
    BYTES: _ClassVar[DataType]

class Variant(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VARIANT_UNSPECIFIED: _ClassVar[Variant]
    FUSED: _ClassVar[Variant]
    UNFUSED: _ClassVar[Variant]
DATA_TYPE_UNSPECIFIED: DataType
FP32: DataType
FP16: DataType
BF16: DataType
FP64: DataType
INT32: DataType
INT64: DataType
BOOL: DataType
BYTES: DataType
VARIANT_UNSPECIFIED: Variant
FUSED: Variant
UNFUSED: Variant

class Tensor(_message.Message):
    __slots__ = ("shape", "dtype", "data", "values", "integers", "strings")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: DataType
    data: bytes
    values: _containers.RepeatedScalarFieldContainer[float]
    integers: _containers.RepeatedScalarFieldContainer[int]
    strings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[DataType, str]] = ..., data: _Optional[bytes] = ..., values: _Optional[_Iterable[float]] = ..., integers: _Optional[_Iterable[int]] = ..., strings: _Optional[_Iterable[str]] = ...) -> None: ...

class NamedTensor(_message.Message):
    __slots__ = ("name", "tensor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    tensor: Tensor
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("model", "version", "input", "variant", "request_id", "output", "arm", "inputs", "shared", "top_k", "min_score", "ids")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ARM_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_SCORE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    input: Tensor
    variant: Variant
    request_id: str
    output: str
    arm: str
    inputs: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    shared: _containers.RepeatedScalarFieldContainer[str]
    top_k: int
    min_score: float
    ids: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., input: _Optional[_Union[Tensor, _Mapping]] = ..., variant: _Optional[_Union[Variant, str]] = ..., request_id: _Optional[str] = ..., output: _Optional[str] = ..., arm: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., shared: _Optional[_Iterable[str]] = ..., top_k: _Optional[int] = ..., min_score: _Optional[float] = ..., ids: _Optional[str] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_ns", "compute_ns", "batch_rows")
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    queue_ns: int
    compute_ns: int
    batch_rows: int
    def __init__(self, queue_ns: _Optional[int] = ..., compute_ns: _Optional[int] = ..., batch_rows: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("output", "model", "version", "variant", "strategy", "timings", "request_id", "error", "output_name", "squeeze", "others", "positions", "ids")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_NAME_FIELD_NUMBER: _ClassVar[int]
    SQUEEZE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    output: Tensor
    model: str
    version: int
    variant: Variant
    strategy: str
    timings: Timings
    request_id: str
    error: Error
    output_name: str
    squeeze: bool
    others: _containers.RepeatedCompositeFieldContainer[HeadOutput]
    positions: _containers.RepeatedScalarFieldContainer[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, output: _Optional[_Union[Tensor, _Mapping]] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., variant: _Optional[_Union[Variant, str]] = ..., strategy: _Optional[str] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., request_id: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., output_name: _Optional[str] = ..., squeeze: _Optional[bool] = ..., others: _Optional[_Iterable[_Union[HeadOutput, _Mapping]]] = ..., positions: _Optional[_Iterable[int]] = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...

class HeadOutput(_message.Message):
    __slots__ = ("name", "output", "squeeze")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SQUEEZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    output: Tensor
    squeeze: bool
    def __init__(self, name: _Optional[str] = ..., output: _Optional[_Union[Tensor, _Mapping]] = ..., squeeze: _Optional[bool] = ...) -> None: ...

class Layer(_message.Message):
    __slots__ = ("out_features", "bias", "activation", "gated", "negative_slope")
    OUT_FEATURES_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    GATED_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_SLOPE_FIELD_NUMBER: _ClassVar[int]
    out_features: int
    bias: bool
    activation: str
    gated: bool
    negative_slope: float
    def __init__(self, out_features: _Optional[int] = ..., bias: _Optional[bool] = ..., activation: _Optional[str] = ..., gated: _Optional[bool] = ..., negative_slope: _Optional[float] = ...) -> None: ...

class Kernel(_message.Message):
    __slots__ = ("variant", "backend", "device", "strategy", "isa", "dtype", "threads", "reason")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    ISA_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    variant: Variant
    backend: str
    device: str
    strategy: str
    isa: str
    dtype: str
    threads: int
    reason: str
    def __init__(self, variant: _Optional[_Union[Variant, str]] = ..., backend: _Optional[str] = ..., device: _Optional[str] = ..., strategy: _Optional[str] = ..., isa: _Optional[str] = ..., dtype: _Optional[str] = ..., threads: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("name", "value", "width", "squeeze")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    SQUEEZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    width: int
    squeeze: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., width: _Optional[int] = ..., squeeze: _Optional[bool] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("name", "kind", "datatype", "shape", "ragged", "tables", "vocabulary", "unknown", "example")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    RAGGED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    ragged: bool
    tables: _containers.RepeatedScalarFieldContainer[int]
    vocabulary: int
    unknown: bool
    example: Tensor
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., datatype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., ragged: _Optional[bool] = ..., tables: _Optional[_Iterable[int]] = ..., vocabulary: _Optional[int] = ..., unknown: _Optional[bool] = ..., example: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("name", "op", "inputs", "width", "detail", "weights")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    op: str
    inputs: _containers.RepeatedScalarFieldContainer[str]
    width: int
    detail: str
    weights: str
    def __init__(self, name: _Optional[str] = ..., op: _Optional[str] = ..., inputs: _Optional[_Iterable[str]] = ..., width: _Optional[int] = ..., detail: _Optional[str] = ..., weights: _Optional[str] = ...) -> None: ...

class PrecisionError(_message.Message):
    __slots__ = ("rows", "calibrated", "largest", "mean", "cosine", "top1", "kept")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CALIBRATED_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    COSINE_FIELD_NUMBER: _ClassVar[int]
    TOP1_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    rows: int
    calibrated: bool
    largest: float
    mean: float
    cosine: float
    top1: float
    kept: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rows: _Optional[int] = ..., calibrated: _Optional[bool] = ..., largest: _Optional[float] = ..., mean: _Optional[float] = ..., cosine: _Optional[float] = ..., top1: _Optional[float] = ..., kept: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelVersion(_message.Message):
    __slots__ = ("version", "state", "reason", "in_features", "out_features", "layers", "output_activation", "dtype", "parameters", "labels", "description", "kernels", "example", "variant", "outputs", "input_shape", "summary", "steps", "precision", "precision_error", "memory_bytes", "inputs")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IN_FEATURES_FIELD_NUMBER: _ClassVar[int]
    OUT_FEATURES_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_SHAPE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    PRECISION_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    state: str
    reason: str
    in_features: int
    out_features: int
    layers: _containers.RepeatedCompositeFieldContainer[Layer]
    output_activation: str
    dtype: str
    parameters: int
    labels: _containers.RepeatedScalarFieldContainer[str]
    description: str
    kernels: _containers.RepeatedCompositeFieldContainer[Kernel]
    example: _containers.RepeatedScalarFieldContainer[float]
    variant: Variant
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    input_shape: _containers.RepeatedScalarFieldContainer[int]
    summary: str
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    precision: str
    precision_error: PrecisionError
    memory_bytes: int
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    def __init__(self, version: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., in_features: _Optional[int] = ..., out_features: _Optional[int] = ..., layers: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ..., output_activation: _Optional[str] = ..., dtype: _Optional[str] = ..., parameters: _Optional[int] = ..., labels: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., kernels: _Optional[_Iterable[_Union[Kernel, _Mapping]]] = ..., example: _Optional[_Iterable[float]] = ..., variant: _Optional[_Union[Variant, str]] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., input_shape: _Optional[_Iterable[int]] = ..., summary: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., precision: _Optional[str] = ..., precision_error: _Optional[_Union[PrecisionError, _Mapping]] = ..., memory_bytes: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "default_version", "versions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    default_version: int
    versions: _containers.RepeatedCompositeFieldContainer[ModelVersion]
    def __init__(self, name: _Optional[str] = ..., default_version: _Optional[int] = ..., versions: _Optional[_Iterable[_Union[ModelVersion, _Mapping]]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...
