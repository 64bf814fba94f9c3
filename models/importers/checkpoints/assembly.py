"""Puts a chain of layers together from the steps of a checkpoint, in order: linear, gated, activation, affine. Owns
folding and what may follow what; graphs, which say more, go through building/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fused_mlp.models.dtypes import Array
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.finishing.program import resolve_dtype
from fused_mlp.models.spec import DEFAULT_SLOPE, Activation, Dtype, LayerSpec, MlpSpec, OutputActivation
from fused_mlp.models.weights import LayerWeights, Mlp


@dataclass
class _Layer:
    """A layer while it may still change. `where` is how its source names it, for error texts."""

    where: str
    weight: Array
    bias: Array | None
    gate_weight: Array | None = None
    gate_bias: Array | None = None
    activation: OutputActivation | None = None
    slope: float = DEFAULT_SLOPE
    # An activation after the gating product, which only the last layer may have.
    after_gate: OutputActivation | None = None
    after_gate_slope: float = DEFAULT_SLOPE

    @property
    def gated(self) -> bool:
        return self.gate_weight is not None


@dataclass
class _Affine:
    """x * scale + shift per feature, waiting for the layer it folds into. float64, (in,) or scalar."""

    where: str
    scale: Array
    shift: Array


class Assembler:
    """Call the steps in the order of the forward pass, then `finish`. Each takes `where`, the step's name in
    its source (`layer 3: ReLU`), which every refusal starts with."""

    def __init__(self) -> None:
        self._layers: list[_Layer] = []
        self._affine: _Affine | None = None
        self._dtypes: dict[np.dtype[Any], str] = {}

    def linear(self, where: str, weight: Array, bias: Array | None) -> None:
        """weight: (out, in), bias: (out,)."""
        self._open(where)
        self._check(where, weight, bias)
        weight, bias = self._fold_affine(weight, bias)
        self._layers.append(_Layer(where, weight, bias))
        self._affine = None

    def gated(
        self,
        where: str,
        gate: tuple[Array, Array | None],
        up: tuple[Array, Array | None],
        activation: Activation,
        slope: float = DEFAULT_SLOPE,
    ) -> None:
        """activation(gate) * up, each a (weight, bias)."""
        self._open(where)
        self._check(where, *gate)
        self._check(where, *up)
        if gate[0].shape != up[0].shape:
            raise ModelLoadError(
                f"{where}: gate has shape {tuple(gate[0].shape)}, up {tuple(up[0].shape)}: they must be equal"
            )
        gate_weight, gate_bias = self._fold_affine(*gate)
        weight, bias = self._fold_affine(*up)
        # The spec has one flag for both halves: a missing bias beside a present one is zero.
        if (gate_bias is None) != (bias is None):
            zeros = np.zeros(weight.shape[0], weight.dtype)
            gate_bias = zeros if gate_bias is None else gate_bias
            bias = zeros if bias is None else bias
        self._layers.append(_Layer(where, weight, bias, gate_weight, gate_bias, activation, slope))
        self._affine = None

    def activation(self, where: str, name: OutputActivation, slope: float = DEFAULT_SLOPE) -> None:
        if name == "identity":
            return
        if not self._layers:
            raise ModelLoadError(f"{where} comes before the first linear layer: an MLP starts with one")
        if self._affine is not None:
            raise ModelLoadError(
                f"{where} follows {self._affine.where}, which can only be folded into a linear layer"
            )
        last = self._layers[-1]
        if (last.after_gate if last.gated else last.activation) is not None:
            raise ModelLoadError(f"{where} follows another activation: a layer of an MLP has one")
        if last.gated:
            last.after_gate, last.after_gate_slope = name, slope
        else:
            last.activation, last.slope = name, slope

    def affine(self, where: str, scale: Array, shift: Array) -> None:
        """x * scale + shift, each scalar or one value per feature (a batch norm, an input normalisation):
        folded into the linear layer before it, or else into the one after it."""
        scale, shift = scale.astype(np.float64), shift.astype(np.float64)
        last = self._layers[-1] if self._layers else None
        if self._affine is None and last is not None and not last.gated and last.activation is None:
            features = last.weight.shape[0]
            scale, shift = _spread(where, scale, features), _spread(where, shift, features)
            last.weight = last.weight.astype(np.float64) * scale[:, None]
            last.bias = shift if last.bias is None else last.bias.astype(np.float64) * scale + shift
            return
        if self._affine is not None:
            scale, shift = self._affine.scale * scale, self._affine.shift * scale + shift
        self._affine = _Affine(where, scale, shift)

    def finish(self, dtype: Dtype | None = None) -> Mlp:
        """The model. `dtype` None keeps the source's where it is one we serve; asking for one rounds."""
        if not self._layers:
            raise ModelLoadError("there is no linear layer in it: an MLP has at least one")
        if self._affine is not None:
            raise ModelLoadError(f"{self._affine.where} has no linear layer beside it to be folded into")
        last = self._layers[-1]
        if last.gated:
            output, output_slope = last.after_gate, last.after_gate_slope
        else:
            output, output_slope = last.activation, last.slope
            last.activation, last.slope = None, DEFAULT_SLOPE
        try:
            spec = MlpSpec.of_layers(
                in_features=self._layers[0].weight.shape[1],
                layers=tuple(map(_layer_spec, self._layers)),
                output_activation=output or "identity",
                output_negative_slope=output_slope,
                dtype=resolve_dtype({each.name: where for each, where in self._dtypes.items()}, dtype),
            )
        except ValueError as error:
            raise ModelLoadError.from_validation(error) from error
        weights = [
            LayerWeights(each.weight, each.bias, each.gate_weight, each.gate_bias) for each in self._layers
        ]
        return Mlp(spec, weights)

    def _open(self, where: str) -> None:
        """Refuse a layer after what only the output can have."""
        if not self._layers:
            return
        last = self._layers[-1]
        if last.activation in ("softmax", "log_softmax"):
            raise ModelLoadError(f"{where} follows a {last.activation}: only the output of an MLP has one")
        if last.after_gate is not None:
            raise ModelLoadError(
                f"{where} follows a {last.after_gate} after a gated layer: only the output has one"
            )

    def _check(self, where: str, weight: Array, bias: Array | None) -> None:
        if weight.ndim != 2 or 0 in weight.shape:
            raise ModelLoadError(f"{where}: expected a weight of shape (out, in), got {tuple(weight.shape)}")
        out_features, in_features = weight.shape
        if bias is not None and tuple(bias.shape) != (out_features,):
            raise ModelLoadError(
                f"{where}: expected a bias of shape ({out_features},), got {tuple(bias.shape)}"
            )
        if self._layers and self._layers[-1].weight.shape[0] != in_features:
            before = self._layers[-1]
            raise ModelLoadError(
                f"{where} takes {in_features} inputs, but {before.where} gives {before.weight.shape[0]}"
            )
        for tensor in (weight, bias):
            if tensor is not None:
                self._dtypes.setdefault(tensor.dtype, where)

    def _fold_affine(self, weight: Array, bias: Array | None) -> tuple[Array, Array | None]:
        """W (s x + t) + b = (W s) x + (W t + b), in float64: rounded once, by `finish`."""
        if self._affine is None:
            return weight, bias
        where, features = self._affine.where, weight.shape[1]
        scale, shift = (
            _spread(where, self._affine.scale, features),
            _spread(where, self._affine.shift, features),
        )
        moved = weight.astype(np.float64) @ shift
        return weight.astype(np.float64) * scale, moved if bias is None else bias.astype(np.float64) + moved


def _layer_spec(layer: _Layer) -> LayerSpec:
    # Softmax never gets here: `_open` keeps it last, where it has become the output activation.
    return LayerSpec.model_validate(
        {
            "out_features": layer.weight.shape[0],
            "bias": layer.bias is not None,
            "activation": layer.activation or "identity",
            "negative_slope": layer.slope,
            "gated": layer.gated,
        }
    )


def _spread(where: str, values: Array, features: int) -> Array:
    if values.ndim == 0:
        return np.broadcast_to(values, (features,))
    if tuple(values.shape) != (features,):
        raise ModelLoadError(f"{where}: expected {features} features, got {tuple(values.shape)}")
    return values
