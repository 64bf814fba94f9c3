"""The models the kernel benchmark runs, as specs with random weights. Knows no engine."""

from __future__ import annotations

import math

from bench.kernels.programs import (
    actor_critic,
    nerf,
    normed_layers,
    residual_tower,
    tabular_resnet,
    with_weights,
)
from fused_mlp.kernels.profile.shapes import spec_of, with_random_weights
from fused_mlp.models import Mlp, MlpSpec

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHAPES: dict[str, MlpSpec] = {
    "64-128-128-10 relu": spec_of((64, 128, 128, 10), "relu"),
    "784-512-256-10 relu": spec_of((784, 512, 256, 10), "relu"),
    "128x8 deep silu": spec_of((128,) * 9, "silu"),
    "256-1024-1024-256 gelu": spec_of((256, 1024, 1024, 256), "gelu"),
    "1024-4096-1024 gelu": spec_of((1024, 4096, 1024), "gelu"),
    "GeGLU 768-3072-768": spec_of((768, 3072, 768), "gelu", gated=True),
    "tower 4 x [ln, 1024 gelu, 256, +]": residual_tower(),
    "tabular ResNet 192": tabular_resnet(),
    "NeRF 63-256x8-4 skip": nerf(),
    "actor-critic 17-64-64-6+1 tanh": actor_critic(),
    "4 x [512, ln, relu]": normed_layers(),
}
# The same products without their norms and additions: what those cost. Not part of a run unless named.
WITHOUT_NORMS: dict[str, str] = {
    "tower 4 x [ln, 1024 gelu, 256, +]": "tower without ln and +",
    "4 x [512, ln, relu]": "4 x [512, relu]",
}
ALL: dict[str, MlpSpec] = SHAPES | {
    "tower without ln and +": residual_tower(plain=True),
    "4 x [512, relu]": normed_layers(plain=True),
}


def build(name: str) -> Mlp:
    """The same weights in every process."""
    spec = ALL[name]
    return with_weights(spec) if spec.layers is None else with_random_weights(spec)


def multiply_adds(name: str) -> int:
    """Per row."""
    return sum(math.prod(shape) for _, shape in ALL[name].shapes() if len(shape) == 2)
