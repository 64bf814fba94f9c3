"""What the server says about its models, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.service.client.prediction import variant_name
from fused_mlp.service.variant import Variant


@dataclass(frozen=True, slots=True)
class LayerInfo:
    out_features: int
    bias: bool
    activation: str
    gated: bool


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
class VersionInfo:
    """One version. `reason` says why it is not READY; `variant` answers requests that name none."""

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

    @property
    def widths(self) -> tuple[int, ...]:
        """Input width, then the output width of each layer."""
        return (self.in_features, *(layer.out_features for layer in self.layers))

    @property
    def activations(self) -> tuple[str, ...]:
        """The distinct activations in order of appearance, the output's last; identity is not named."""
        names = [f"gated {layer.activation}" if layer.gated else layer.activation for layer in self.layers]
        names.append(self.output_activation)
        return tuple(dict.fromkeys(name for name in names if name not in ("", "identity")))


@dataclass(frozen=True, slots=True)
class ModelInfo:
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
