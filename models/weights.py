"""An MLP in memory: a spec and its tensors, and the plain PyTorch module it stands for.
Knows nothing of files."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.torch_modules import GatedLinear, activation_module
from fused_mlp.models.spec import Dtype, MlpSpec

TORCH_DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class LayerWeights:
    """weight: (out, in), bias: (out,); a gated layer has gate_weight and gate_bias of the same shapes."""

    weight: Tensor
    bias: Tensor | None = None
    gate_weight: Tensor | None = None
    gate_bias: Tensor | None = None

    def named(self) -> Iterator[tuple[str, Tensor]]:
        for name in ("weight", "bias", "gate_weight", "gate_bias"):
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor


class Mlp:
    """A validated MLP, to be treated as immutable. Its tensors are copies of those given: contiguous, on the
    CPU, in the spec's dtype, finite.

    `example` is one input row people may try the model with, `source` says in words where it came from."""

    def __init__(
        self,
        spec: MlpSpec,
        layers: Sequence[LayerWeights],
        *,
        example: Sequence[float] | None = None,
        source: str = "",
    ) -> None:
        if len(layers) != len(spec.layers):
            raise ModelLoadError(f"{len(layers)} layers of weights for {len(spec.layers)} in the spec")
        given = {
            f"layers.{index}.{name}": tensor
            for index, layer in enumerate(layers)
            for name, tensor in layer.named()
        }
        check_shapes(spec, {name: tuple(tensor.shape) for name, tensor in given.items()})
        self.spec = spec
        self.layers = tuple(
            LayerWeights(
                **{name: _own(f"layers.{index}.{name}", tensor, spec.dtype) for name, tensor in layer.named()}
            )
            for index, layer in enumerate(layers)
        )
        self.example = _check_example(spec, example)
        self.source = source

    def tensors(self) -> dict[str, Tensor]:
        """Flat names, as in the native file format: `layers.0.weight`, `layers.0.gate_bias`, ..."""
        return {
            f"layers.{index}.{name}": tensor
            for index, layer in enumerate(self.layers)
            for name, tensor in layer.named()
        }

    @classmethod
    def from_tensors(
        cls,
        spec: MlpSpec,
        tensors: Mapping[str, Tensor],
        *,
        example: Sequence[float] | None = None,
        source: str = "",
    ) -> Mlp:
        """The inverse of `tensors()`. Missing and unknown names are refused by name."""
        check_shapes(spec, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        fields: list[dict[str, Tensor]] = [{} for _ in spec.layers]
        for key, tensor in tensors.items():
            _, index, name = key.split(".")
            fields[int(index)][name] = tensor
        return cls(spec, [LayerWeights(**field) for field in fields], example=example, source=source)

    def annotated(
        self,
        *,
        labels: Sequence[str] | None = None,
        description: str | None = None,
        example: Sequence[float] | None = None,
        source: str | None = None,
    ) -> Mlp:
        """The same model with other words around it; what is None stays as it was."""
        fields = self.spec.model_dump()
        if labels is not None:
            fields["labels"] = tuple(labels)
        if description is not None:
            fields["description"] = description
        other = copy.copy(self)
        try:
            other.spec = MlpSpec.model_validate(fields)
        except ValueError as error:
            raise ModelLoadError.from_validation(error) from None
        if example is not None:
            other.example = _check_example(other.spec, example)
        if source is not None:
            other.source = source
        return other

    def to_torch(self) -> nn.Module:
        """Eager layers as a PyTorch user would write them, in eval mode, with copies of the weights."""
        modules: list[nn.Module] = []
        for layer, weights in zip(self.spec.layers, self.layers, strict=True):
            activation = activation_module(layer.activation, layer.negative_slope)
            if layer.gated:
                assert weights.gate_weight is not None
                modules.append(
                    GatedLinear(
                        gate_proj=_linear(weights.gate_weight, weights.gate_bias),
                        up_proj=_linear(weights.weight, weights.bias),
                        activation=activation,
                    )
                )
                continue
            modules.append(_linear(weights.weight, weights.bias))
            if layer.activation != "identity":
                modules.append(activation)
        if self.spec.output_activation != "identity":
            modules.append(activation_module(self.spec.output_activation, self.spec.output_negative_slope))
        return nn.Sequential(*modules).eval()

    def __repr__(self) -> str:
        return f"Mlp({self.spec.summary()}, {self.spec.dtype}, {self.spec.parameters:,} parameters)"


def expected_shapes(spec: MlpSpec) -> dict[str, tuple[int, ...]]:
    """The tensors a model of this spec has, by native name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for index, (fan_in, layer) in enumerate(zip(spec.widths, spec.layers, strict=False)):
        for half in ("", "gate_") if layer.gated else ("",):
            shapes[f"layers.{index}.{half}weight"] = (layer.out_features, fan_in)
            if layer.bias:
                shapes[f"layers.{index}.{half}bias"] = (layer.out_features,)
    return shapes


def check_shapes(spec: MlpSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse, by name, the first tensor that is missing, unknown or of another shape than the spec says."""
    expected = expected_shapes(spec)
    for name in expected:
        if name not in shapes:
            raise ModelLoadError(f"tensor {name!r} is missing: the spec expects shape {expected[name]}")
    for name, shape in shapes.items():
        if name not in expected:
            raise ModelLoadError(f"tensor {name!r} is not part of this model's spec")
        if shape != expected[name]:
            raise ModelLoadError(f"tensor {name!r}: expected shape {expected[name]}, got {shape}")


def _own(name: str, tensor: Tensor, dtype: Dtype) -> Tensor:
    """A copy that nobody else writes to: the source may be a module in training or a mapped file."""
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        raise ModelLoadError(f"tensor {name!r} is not a plain dense tensor with data")
    copied = tensor.detach().to("cpu", TORCH_DTYPES[dtype], copy=True, memory_format=torch.contiguous_format)
    bad = int(copied.numel() - torch.isfinite(copied).sum())
    if bad:
        was_finite = bool(torch.isfinite(tensor).all())
        why = f"too large for {dtype}" if was_finite else "NaN or infinite"
        raise ModelLoadError(f"tensor {name!r}: {bad} of {copied.numel()} values are {why}")
    return copied


def _check_example(spec: MlpSpec, example: Sequence[float] | None) -> tuple[float, ...] | None:
    if example is None:
        return None
    values = tuple(float(value) for value in example)
    if len(values) != spec.in_features:
        raise ModelLoadError(f"example: expected {spec.in_features} values, got {len(values)}")
    if not all(map(math.isfinite, values)):
        raise ModelLoadError("example: expected finite values, got NaN or infinity")
    return values


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    out_features, in_features = weight.shape
    # meta: skip the random initialisation that would be overwritten at once.
    linear = nn.Linear(in_features, out_features, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.clone(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return linear
