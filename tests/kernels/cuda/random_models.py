# SPDX-License-Identifier: Apache-2.0
"""Random MLPs for the CUDA tests. Weights are scaled so that activations stay near one at any depth."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fused_mlp.models import LayerSpec, Mlp, MlpSpec


def make_spec(
    widths: Sequence[int],
    activation: str = "relu",
    *,
    gated: Sequence[bool] | bool = False,
    bias: bool = True,
    output: str = "identity",
    dtype: str = "float32",
) -> MlpSpec:
    flags = [gated] * (len(widths) - 1) if isinstance(gated, bool) else list(gated)
    last = len(widths) - 2
    layers = []
    for index, (width, flag) in enumerate(zip(widths[1:], flags, strict=True)):
        name = activation if flag or index < last else "identity"
        slope = {"negative_slope": 0.2} if name == "leaky_relu" else {}
        layers.append(LayerSpec(out_features=width, bias=bias, activation=name, gated=flag, **slope))
    slope = {"output_negative_slope": 0.3} if output == "leaky_relu" else {}
    return MlpSpec(
        in_features=widths[0], layers=tuple(layers), output_activation=output, dtype=dtype, **slope
    )


def make_mlp(spec: MlpSpec, seed: int = 0) -> Mlp:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for step in spec.steps:
        for name, shape in step.shapes(spec.source_widths(step)).items():
            scale = spec.source_widths(step)[0] ** -0.5 if step.op in ("linear", "gated") else 1.0
            tensors[f"{step.prefix}.{name}"] = torch.randn(shape, generator=generator) * scale
    return Mlp(spec, tensors)
