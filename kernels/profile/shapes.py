"""MLPs with random weights for given widths (--dims), and the arithmetic and bytes of a shape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from fused_mlp.kernels.profile.errors import ProfileError
from fused_mlp.models import Activation, LayerSpec, LayerWeights, Mlp, MlpSpec

_MOST_LAYERS = 256  # of an MlpSpec
_COPIES = 4  # of the weights: ours, the module's, those that the fused kernel and torch.compile pack
BYTES_PER_FLOAT = 4  # CPU kernels compute in float32, whatever the model is stored in


def check_shape(widths: Sequence[int], gated: bool) -> None:
    """Raises ProfileError for a shape that no model may have or that does not fit into memory."""
    if len(widths) - 1 > _MOST_LAYERS:
        raise ProfileError(f"expected at most {_MOST_LAYERS} layers, got {len(widths) - 1}")
    products = [a * b for a, b in pairwise(widths)]
    size = BYTES_PER_FLOAT * (sum(products) + gated * sum(products[:-1]))
    if size * _COPIES > _memory():
        raise ProfileError(
            f"expected weights of at most {_memory() / _COPIES / 1e9:.1f} GB, {_COPIES} copies of which fit into this "
            f"machine's memory; got {size / 1e9:,.1f} GB"
        )


def random_mlp(widths: Sequence[int], activation: Activation = "relu", gated: bool = False) -> Mlp:
    """widths: input, hidden ..., output. `gated` makes every hidden layer a gated one (GeGLU, SwiGLU)."""
    check_shape(widths, gated)
    return with_random_weights(spec_of(widths, activation, gated))


def spec_of(widths: Sequence[int], activation: Activation, gated: bool = False) -> MlpSpec:
    hidden = [LayerSpec(out_features=width, activation=activation, gated=gated) for width in widths[1:-1]]
    return MlpSpec(in_features=widths[0], layers=(*hidden, LayerSpec(out_features=widths[-1])))


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def with_random_weights(spec: MlpSpec) -> Mlp:
    """The same weights every time, scaled so that activations keep their magnitude from layer to layer."""
    generator = torch.Generator().manual_seed(1)
    layers = []
    for fan_in, layer in zip(spec.widths, spec.layers, strict=False):
        scale = float(fan_in) ** -0.5
        halves = 2 if layer.gated else 1
        weights = [
            (torch.randn(layer.out_features, fan_in, generator=generator) * scale).numpy()
            for _ in range(halves)
        ]
        biases = [
            torch.randn(layer.out_features, generator=generator).numpy() if layer.bias else None
            for _ in weights
        ]
        gate = (weights[1], biases[1]) if layer.gated else (None, None)
        layers.append(LayerWeights(weights[0], biases[0], *gate))
    return Mlp(spec, layers)


def narrow_twin(spec: MlpSpec, width: int = 16) -> Mlp:
    """The same layers, so narrow that their arithmetic is nothing: what is left of the time is the cost of calling
    them. Not narrower: products with one column or row are computed in ways of their own."""
    layers = tuple(
        layer.model_copy(update={"out_features": min(width, layer.out_features)}) for layer in spec.layers
    )
    twin = {"in_features": min(width, spec.in_features), "layers": layers, "labels": None, "dtype": "float32"}
    return with_random_weights(spec.model_copy(update=twin))


@dataclass(frozen=True)
class Work:
    """The least work of one forward pass, whatever the implementation."""

    flops: int
    weight_bytes: int
    input_bytes: int
    output_bytes: int

    @property
    def bytes_moved(self) -> int:
        return self.weight_bytes + self.input_bytes + self.output_bytes


def work_of(spec: MlpSpec, batch: int) -> Work:
    products = sum(
        fan_in * layer.out_features * (2 if layer.gated else 1)
        for fan_in, layer in zip(spec.widths, spec.layers, strict=False)
    )
    return Work(
        flops=2 * products * batch,
        weight_bytes=spec.parameters * BYTES_PER_FLOAT,
        input_bytes=batch * spec.in_features * BYTES_PER_FLOAT,
        output_bytes=batch * spec.out_features * BYTES_PER_FLOAT,
    )
