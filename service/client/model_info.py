# SPDX-License-Identifier: Apache-2.0
"""The server's description of its models, as frozen records."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.service.client.prediction import variant_name
from fused_mlp.variant import Variant

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """One layer of a plain chain: its width, whether it has a bias, its activation, whether it is gated."""

    out_features: int
    bias: bool
    activation: str
    gated: bool


@dataclass(frozen=True, slots=True)
class OutputInfo:
    """One output of a model. `value` is the step that computes it; `squeeze`: the model returns it as (rows,)."""

    name: str
    value: str
    width: int
    squeeze: bool


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step of a program: makes the value `name` of `width` features from `inputs`. `weights`: the step whose
    tensors it shares."""

    name: str
    op: str
    inputs: tuple[str, ...]
    width: int
    detail: str
    weights: str


@dataclass(frozen=True, slots=True)
class ServedKernel:
    """A loaded kernel. `reason` says why it was chosen."""

    variant: Variant
    backend: str
    device: str
    strategy: str
    isa: str
    dtype: str
    threads: int
    reason: str


@dataclass(frozen=True, slots=True)
class InputInfo:
    """One input by name. `kind`: float, id or string; `datatype` as in the Open Inference Protocol; `shape` of one row;
    `ragged`: a row may have fewer values; `tables`: the rows of the tables that its ids pick from; `vocabulary`: the
    number of known words, 0 if it has none; `unknown`: whether unknown words are accepted; `example`: the values of one
    row."""

    name: str
    kind: str
    datatype: str
    shape: tuple[int, ...]
    ragged: bool
    tables: tuple[int, ...]
    vocabulary: int
    unknown: bool
    example: tuple[float | str, ...]


@dataclass(frozen=True, slots=True)
class PrecisionErrorInfo:
    """The error of a version with weights in fewer bits, against float64 with the original weights: differences as a
    share of a row's largest output; `kept` are the steps that stay in float32."""

    rows: int
    calibrated: bool
    largest: float
    mean: float
    cosine: float | None
    top1: float | None
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One version. `reason` says why it is not READY; `variant` answers requests that name none. `layers` describe a
    plain chain; every program has a `summary` and, when one model was asked for, its `steps`. `labels` belong to the
    first output. `input_shape` is the shape of one row."""

    version: int
    state: str
    reason: str
    in_features: int
    out_features: int
    layers: tuple[LayerInfo, ...]
    output_activation: str
    dtype: str
    parameters: int
    labels: tuple[str, ...]
    description: str
    kernels: tuple[ServedKernel, ...]
    example: tuple[float, ...]
    variant: Variant | None
    outputs: tuple[OutputInfo, ...]
    input_shape: tuple[int, ...]
    summary: str
    steps: tuple[StepInfo, ...]
    precision: str = "float32"
    precision_error: PrecisionErrorInfo | None = None
    memory_bytes: int = 0  # of its kernels
    inputs: tuple[InputInfo, ...] = ()  # that have names; none: one tensor of in_features floats

    @property
    def named_example(self) -> dict[str, tuple[float | str, ...]]:
        """One example row of each input that has a name; empty: the model ships none."""
        row = {each.name: each.example for each in self.inputs}
        return row if any(row.values()) else {}

    @property
    def widths(self) -> tuple[int, ...]:
        """For a plain chain: the input width, then the output width of each layer."""
        return (self.in_features, *(layer.out_features for layer in self.layers))

    @property
    def activations(self) -> tuple[str, ...]:
        """For a plain chain: the distinct activations in order of appearance, the output's last; identity is not
        named."""
        names = [f"gated {layer.activation}" if layer.gated else layer.activation for layer in self.layers]
        names.append(self.output_activation)
        return tuple(dict.fromkeys(name for name in names if name not in ("", "identity")))


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model of a server: its name, the version that answers requests that name none, all its versions."""

    name: str
    default_version: int
    versions: tuple[VersionInfo, ...]

    def version(self, number: int | None = None) -> VersionInfo | None:
        """A version by number, or the default one."""
        wanted = number or self.default_version
        return next((version for version in self.versions if version.version == wanted), None)


def read_record(record: Callable[..., R], message: Any, **own: Any) -> R:
    """A record from the fields of a message that have the same names; repeated fields become tuples. `own`: the fields
    that differ."""
    names = [field.name for field in fields(cast("Any", record)) if field.name not in own]
    values = {name: getattr(message, name) for name in names}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, MutableSequence)}
    return record(**values | lists | own)


def read_model(model: pb.Model) -> ModelInfo:
    return read_record(ModelInfo, model, versions=tuple(map(_read_version, model.versions)))


def _read_version(version: pb.ModelVersion) -> VersionInfo:
    return read_record(
        VersionInfo,
        version,
        layers=tuple(read_record(LayerInfo, layer) for layer in version.layers),
        kernels=tuple(
            read_record(ServedKernel, each, variant=variant_name(each.variant)) for each in version.kernels
        ),
        variant=variant_name(version.variant) if version.variant else None,
        outputs=tuple(read_record(OutputInfo, output) for output in version.outputs),
        input_shape=tuple(version.input_shape) or ((version.in_features,) if version.in_features else ()),
        steps=tuple(read_record(StepInfo, step) for step in version.steps),
        precision_error=_read_error(version.precision_error) if version.HasField("precision_error") else None,
        inputs=tuple(read_record(InputInfo, each, example=_values(each.example)) for each in version.inputs),
    )


def _values(row: pb.Tensor) -> tuple[float | str, ...]:
    return tuple(row.strings) or tuple(row.integers) or tuple(row.values)


def _read_error(error: pb.PrecisionError) -> PrecisionErrorInfo:
    optional = {name: getattr(error, name) if error.HasField(name) else None for name in ("cosine", "top1")}
    return read_record(PrecisionErrorInfo, error, **optional)
