# SPDX-License-Identifier: Apache-2.0
"""Random models for the tests of the CPU kernel, and what float64 and eager PyTorch make of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from hypothesis import strategies as st

from fused_mlp.kernels import Kernel
from fused_mlp.models import Activation, LayerSpec, LayerWeights, Mlp, MlpSpec, OutputActivation

ACTIVATIONS: list[Activation] = list(get_args(Activation))
OUTPUT_ACTIVATIONS: list[OutputActivation] = [*ACTIVATIONS, "softmax", "log_softmax"]

# Widths around the sizes of registers and panels, primes, and anything up to 300.
WIDTHS = st.one_of(
    st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 251, 257]), st.integers(1, 300)
)


def random_mlp(spec: MlpSpec, seed: int = 0) -> Mlp:
    """Weights scaled so that activations stay of order one through all layers."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for fan_in, layer in zip(spec.widths, spec.layers, strict=False):
        scale = 1.5 / fan_in**0.5

        def tensor(*shape: int, scale: float = scale) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) * scale

        out = layer.out_features
        layers.append(
            LayerWeights(
                weight=tensor(out, fan_in),
                bias=tensor(out) if layer.bias else None,
                gate_weight=tensor(out, fan_in) if layer.gated else None,
                gate_bias=tensor(out) if layer.gated and layer.bias else None,
            )
        )
    return Mlp(spec, tuple(layers))


def plain_mlp(*widths: int, activation: Activation = "relu", output: OutputActivation = "identity") -> Mlp:
    hidden = [LayerSpec(out_features=width, activation=activation) for width in widths[1:-1]]
    layers = (*hidden, LayerSpec(out_features=widths[-1]))
    return random_mlp(MlpSpec(in_features=widths[0], layers=layers, output_activation=output))


@st.composite
def specs(draw: st.DrawFn) -> MlpSpec:
    """Any model: depth 1..8, every activation, gated or not, with a bias or without."""
    depth = draw(st.integers(1, 8))
    layers = []
    for index in range(depth):
        gated = draw(st.booleans())
        ends_plain = index == depth - 1 and not gated
        activation = "identity" if ends_plain else draw(st.sampled_from(ACTIVATIONS))
        layers.append(
            LayerSpec(
                out_features=draw(WIDTHS),
                bias=draw(st.booleans()),
                activation=activation,
                gated=gated,
                **_slope(draw, "negative_slope", activation),
            )
        )
    output = draw(st.sampled_from(OUTPUT_ACTIVATIONS))
    return MlpSpec(
        in_features=draw(WIDTHS),
        layers=tuple(layers),
        output_activation=output,
        **_slope(draw, "output_negative_slope", output),
    )


def _slope(draw: st.DrawFn, name: str, activation: str) -> dict[str, float]:
    return {name: draw(st.sampled_from([0.01, 0.5, -0.25]))} if activation == "leaky_relu" else {}


def rows_for(mlp: Mlp, rows: int, seed: int = 0) -> np.ndarray:
    """x: (rows, in_features) float32"""
    return np.random.default_rng(seed).standard_normal((rows, mlp.spec.in_features), dtype=np.float32)


def run(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    y = np.full((len(x), kernel.spec.out_features), 7.0, np.float32)
    kernel.run(x, y)
    return y


@dataclass(frozen=True)
class Reference:
    exact: np.ndarray  # float64
    eager: np.ndarray  # eager PyTorch in the model's dtype, as float64
    rounding: float  # what one rounding of every product and sum can do to an output, in float32


def reference(mlp: Mlp, x: np.ndarray) -> Reference:
    module = mlp.to_torch()
    tensor = torch.from_numpy(x)
    dtype = next(module.parameters()).dtype
    with torch.inference_mode():
        eager = module(tensor.to(dtype)).double().numpy()
        exact = module.double()(tensor.to(dtype).double()).numpy()
    return Reference(exact, eager, _rounding(mlp, tensor.double()))


def _rounding(mlp: Mlp, x: torch.Tensor) -> float:
    """The scale of rounding errors: eps times the sum of absolute values, carried through the layers.
    Eager may be exact by luck on a small output; no kernel can be asked for less than this."""
    eps = float(np.finfo(np.float32).eps)
    value, error = x, torch.zeros_like(x)
    modules = iter(mlp.to_torch().double())
    with torch.inference_mode():
        for index, (layer, weights) in enumerate(zip(mlp.spec.layers, mlp.layers, strict=True)):
            size, carried = _magnitudes(weights.weight, weights.bias, value, error)
            if layer.gated:
                gate_size, gate_carried = _magnitudes(weights.gate_weight, weights.gate_bias, value, error)
                # d(gate * up): each factor's error times the other factor. No activation is steeper than 1.2.
                carried = (
                    1.2 * (carried + eps * size) * gate_size + 1.2 * (gate_carried + eps * gate_size) * size
                )
                size = size * gate_size
            error = 1.2 * (carried + eps * size)
            value = next(modules)(value)
            if not layer.gated and index + 1 < len(mlp.spec.layers) and layer.activation != "identity":
                value = next(modules)(value)
    return float(error.max())


def _magnitudes(
    weight: np.ndarray | None, bias: np.ndarray | None, value: torch.Tensor, error: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    assert weight is not None
    absolute = torch.from_numpy(np.abs(weight.astype(np.float64))).T
    size = value.abs() @ absolute
    if bias is not None:
        size = size + torch.from_numpy(np.abs(bias.astype(np.float64)))
    return size, error @ absolute
