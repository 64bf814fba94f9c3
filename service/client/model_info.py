# SPDX-License-Identifier: Apache-2.0
"""What the server says about its models, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.service.client.prediction import variant_name
from fused_mlp.service.variant import Variant


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """One layer of a plain chain: its width, whether it has a bias, its activation, whether it is gated."""

    out_features: int
    bias: bool
    activation: str
    gated: bool


@dataclass(frozen=True, slots=True)
class OutputInfo:
    """What a model answers. `value` is the step that makes it; `squeeze`: the model itself answers (rows,)."""

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
class PrecisionErrorInfo:
    """How far a version with weights in fewer bits is from float64 with those it was made from: differences as a share
    of a row's largest output; `kept` are the steps that stay in float32."""

    rows: int
    calibrated: bool
    largest: float
    mean: float
    cosine: float | None
    top1: float | None
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One version. `reason` says why it is not READY; `variant` answers requests that name none. `layers` are those of
    a plain chain; every program has a `summary` and, when one model was asked for, its `steps`. `labels` belong to the
    first of its outputs. `input_shape` is that of one row."""

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

    @property
    def widths(self) -> tuple[int, ...]:
        """Of a plain chain: the input's, then the output width of each layer."""
        return (self.in_features, *(layer.out_features for layer in self.layers))

    @property
    def activations(self) -> tuple[str, ...]:
        """Of a plain chain: the distinct ones in order of appearance, the output's last; identity is not named."""
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


def read_model(model: pb.Model) -> ModelInfo:
    return ModelInfo(model.name, model.default_version, tuple(map(_read_version, model.versions)))


def _read_version(version: pb.ModelVersion) -> VersionInfo:
    return VersionInfo(
        version=version.version,
        state=version.state,
        reason=version.reason,
        in_features=version.in_features,
        out_features=version.out_features,
        layers=tuple(
            LayerInfo(layer.out_features, layer.bias, layer.activation, layer.gated)
            for layer in version.layers
        ),
        output_activation=version.output_activation,
        dtype=version.dtype,
        parameters=version.parameters,
        labels=tuple(version.labels),
        description=version.description,
        kernels=tuple(map(_read_kernel, version.kernels)),
        example=tuple(version.example),
        variant=variant_name(version.variant) if version.variant else None,
        outputs=tuple(
            OutputInfo(output.name, output.value, output.width, output.squeeze) for output in version.outputs
        ),
        input_shape=tuple(version.input_shape) or ((version.in_features,) if version.in_features else ()),
        summary=version.summary,
        steps=tuple(
            StepInfo(step.name, step.op, tuple(step.inputs), step.width, step.detail, step.weights)
            for step in version.steps
        ),
        precision=version.precision,
        precision_error=_read_error(version.precision_error) if version.HasField("precision_error") else None,
        memory_bytes=version.memory_bytes,
    )


def _read_error(error: pb.PrecisionError) -> PrecisionErrorInfo:
    cosine = error.cosine if error.HasField("cosine") else None
    top1 = error.top1 if error.HasField("top1") else None
    return PrecisionErrorInfo(
        error.rows, error.calibrated, error.largest, error.mean, cosine, top1, tuple(error.kept)
    )


def _read_kernel(kernel: pb.Kernel) -> ServedKernel:
    return ServedKernel(
        variant=variant_name(kernel.variant),
        backend=kernel.backend,
        device=kernel.device,
        strategy=kernel.strategy,
        isa=kernel.isa,
        dtype=kernel.dtype,
        threads=kernel.threads,
        reason=kernel.reason,
    )
