"""An MLP in memory: a spec and its tensors, as numpy arrays. Knows nothing of files; torch only where `to_torch` is
called or a torch tensor is handed in."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fused_mlp.models.dtypes import Array, named_dtype
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.spec import Dtype, MlpSpec

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class LayerWeights:
    """weight: (out, in), bias: (out,); a gated layer has gate_weight and gate_bias of the same shapes."""

    weight: Array
    bias: Array | None = None
    gate_weight: Array | None = None
    gate_bias: Array | None = None

    def named(self) -> Iterator[tuple[str, Array]]:
        for name in ("weight", "bias", "gate_weight", "gate_bias"):
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor


class Mlp:
    """A validated MLP, to be treated as immutable. Its tensors are copies of those given (numpy arrays or torch
    tensors): numpy arrays, C-contiguous, in the spec's dtype, finite.

    `example` is an input row to try the model with, `source` says in words where the model came from."""

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

    def tensors(self) -> dict[str, Array]:
        """Flat names, as in `model.safetensors`: `layers.0.weight`, `layers.0.gate_bias`, ..."""
        return {
            f"layers.{index}.{name}": tensor
            for index, layer in enumerate(self.layers)
            for name, tensor in layer.named()
        }

    @classmethod
    def from_tensors(
        cls,
        spec: MlpSpec,
        tensors: Mapping[str, Array],
        *,
        example: Sequence[float] | None = None,
        source: str = "",
    ) -> Mlp:
        """The inverse of `tensors()`. Missing and unknown names are refused by name."""
        check_shapes(spec, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        fields: list[dict[str, Array]] = [{} for _ in spec.layers]
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
        """The same weights with other labels, description, example or source; what is None stays as it was."""
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
        try:
            from fused_mlp.models.importers.torch_modules import make_module  # noqa: PLC0415 - brings torch
        except ModuleNotFoundError as error:
            raise ImportError("Mlp.to_torch needs torch: pip install 'fused-mlp[torch]'") from error
        return make_module(self)

    def __repr__(self) -> str:
        return f"Mlp({self.spec.summary()}, {self.spec.dtype}, {self.spec.parameters:,} parameters)"


def expected_shapes(spec: MlpSpec) -> dict[str, tuple[int, ...]]:
    """The tensors a model of this spec has, by name."""
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


def _own(name: str, tensor: Array, dtype: Dtype) -> Array:
    """A copy that nothing else writes to: the source may be a module in training."""
    given = tensor if isinstance(tensor, np.ndarray) else _from_tensor(name, tensor)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is counted below
        copied = np.array(given, named_dtype(dtype), order="C")
        bad = copied.size - int(np.count_nonzero(np.isfinite(copied)))
        if bad:
            why = f"too large for {dtype}" if np.isfinite(given).all() else "NaN or infinite"
            raise ModelLoadError(f"tensor {name!r}: {bad} of {copied.size} values are {why}")
    return copied


def _from_tensor(name: str, tensor: object) -> Array:
    """A torch tensor as an array. Tensors exist only in processes that have imported torch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise ModelLoadError(f"tensor {name!r}: expected a numpy array, got {type(tensor).__name__}")
    from fused_mlp.models.importers.torch_tensors import to_array  # noqa: PLC0415

    return to_array(tensor, name)


def _check_example(spec: MlpSpec, example: Sequence[float] | None) -> tuple[float, ...] | None:
    if example is None:
        return None
    values = tuple(float(value) for value in example)
    if len(values) != spec.in_features:
        raise ModelLoadError(f"example: expected {spec.in_features} values, got {len(values)}")
    if not all(map(math.isfinite, values)):
        raise ModelLoadError("example: expected finite values, got NaN or infinity")
    return values
