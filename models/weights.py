"""An MLP in memory: a spec and its tensors, and the plain PyTorch module it stands for.
Knows nothing of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.errors import ModelLoadError
from models.modules import GatedLinear, activation_module
from models.spec import MlpSpec

TORCH_DTYPES = {
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
    """A validated MLP. Tensors are contiguous, on the CPU, detached, in the spec's dtype."""

    def __init__(self, spec: MlpSpec, layers: tuple[LayerWeights, ...]) -> None:
        if len(layers) != len(spec.layers):
            raise ModelLoadError(f"{len(layers)} layers of weights for {len(spec.layers)} in the spec")
        dtype = TORCH_DTYPES[spec.dtype]
        self.spec = spec
        self.layers = tuple(
            LayerWeights(**{
                name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in layer.named()
            })
            for layer in layers
        )
        self._check()

    def _check(self) -> None:
        for index, (layer, weights) in enumerate(zip(self.spec.layers, self.layers, strict=True)):
            matrix = (layer.out_features, self.spec.widths[index])
            vector = (layer.out_features,)
            expected = {"weight": matrix}
            if layer.bias:
                expected["bias"] = vector
            if layer.gated:
                expected["gate_weight"] = matrix
                if layer.bias:
                    expected["gate_bias"] = vector
            got = {name: tuple(tensor.shape) for name, tensor in weights.named()}
            if got != expected:
                raise ModelLoadError(f"layer {index}: expected tensors {expected}, got {got}")

    def tensors(self) -> dict[str, Tensor]:
        """Flat names, as in the native file format: `layers.0.weight`, `layers.0.gate_bias`, ..."""
        return {
            f"layers.{index}.{name}": tensor
            for index, layer in enumerate(self.layers)
            for name, tensor in layer.named()
        }

    @classmethod
    def from_tensors(cls, spec: MlpSpec, tensors: Mapping[str, Tensor]) -> Mlp:
        """The inverse of `tensors()`. Missing and unknown names are refused by name."""
        fields: list[dict[str, Tensor]] = [{} for _ in spec.layers]
        for key, tensor in tensors.items():
            prefix, _, name = key.rpartition(".")
            index = prefix.removeprefix("layers.")
            known = ("weight", "bias", "gate_weight", "gate_bias")
            if not index.isdecimal() or int(index) >= len(fields) or name not in known:
                raise ModelLoadError(f"tensor {key!r} is not part of this model")
            fields[int(index)][name] = tensor
        for index, field in enumerate(fields):
            if "weight" not in field:
                raise ModelLoadError(f"tensor 'layers.{index}.weight' is missing")
        return cls(spec, tuple(LayerWeights(**field) for field in fields))

    def to_torch(self) -> nn.Module:
        """Eager layers, exactly what a PyTorch user would write, in eval mode, with own copies of the weights."""
        modules: list[nn.Module] = []
        for index, (layer, weights) in enumerate(zip(self.spec.layers, self.layers, strict=True)):
            activation = activation_module(layer.activation, layer.negative_slope)
            if layer.gated:
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
            modules.append(
                activation_module(self.spec.output_activation, self.spec.output_negative_slope)
            )
        return nn.Sequential(*modules).eval()

    def __repr__(self) -> str:
        return f"Mlp({self.spec.summary()}, {self.spec.dtype}, {self.spec.parameters:,} parameters)"


def _linear(weight: Tensor | None, bias: Tensor | None) -> nn.Linear:
    assert weight is not None
    out_features, in_features = weight.shape
    # meta: skip the random initialisation that would be overwritten at once.
    linear = nn.Linear(in_features, out_features, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.clone(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return linear
