# SPDX-License-Identifier: Apache-2.0
"""The models the kernel benchmark runs, as specs with random weights. Knows no engine."""

from __future__ import annotations

from typing import Any

from fused_mlp.kernels.profile.shapes import spec_of, with_random_weights
from fused_mlp.kernels.work import work_of
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.spec import INPUT, Affine, Combine, Concat, Elementwise, Linear, Norm, Output

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Steps:
    """Steps one after the other; each method returns the name of the value that it makes."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def add(self, step: type[Any], source: str = "", **fields: Any) -> str:
        name = f"{step.__name__.lower()}{len(self.steps)}"
        self.steps.append(step(name=name, **({"input": source} if source else {}), **fields))
        return name

    def linear(self, source: str, width: int, function: str = "") -> str:
        value = self.add(Linear, source, out_features=width)
        return self.add(Elementwise, value, function=function) if function else value

    def sum(self, left: str, right: str) -> str:
        return self.add(Combine, op="add", inputs=(left, right))


def pre_norm_tower(width: int, hidden: int, blocks: int, plain: bool = False) -> MlpSpec:
    """A transformer's feed-forward blocks, one after the other. `plain`: without norms and additions."""
    made, value = Steps(), INPUT
    for _ in range(blocks):
        normed = value if plain else made.add(Norm, value, kind="layer")
        product = made.linear(made.linear(normed, hidden, "gelu"), width)
        value = product if plain else made.sum(value, product)
    return MlpSpec(in_features=width, steps=made.steps)


def tabular_resnet(columns: int, width: int, blocks: int) -> MlpSpec:
    """Batch norms, residual blocks, and a head of one number."""
    made = Steps()
    value = made.linear(INPUT, width)
    for _ in range(blocks):
        inner = made.linear(made.add(Affine, value), 2 * width, "relu")
        value = made.sum(value, made.linear(inner, width))
    value = made.add(Elementwise, made.add(Affine, value), function="relu")
    made.linear(value, 1)
    return MlpSpec(in_features=columns, steps=made.steps)


def nerf(encoded: int, width: int) -> MlpSpec:
    """Eight layers, the input again in the middle, density and colour."""
    made, value = Steps(), INPUT
    for index in range(8):
        value = made.linear(value, width, "relu")
        if index == 4:
            value = made.add(Concat, inputs=(INPUT, value))
    made.linear(value, 4)
    return MlpSpec(in_features=encoded, steps=made.steps)


def actor_critic(observation: int, width: int, actions: int) -> MlpSpec:
    made = Steps()
    value = made.linear(made.linear(INPUT, width, "tanh"), width, "tanh")
    outputs = [
        Output(name="pi", value=made.linear(value, actions)),
        Output(name="v", value=made.linear(value, 1)),
    ]
    return MlpSpec(in_features=observation, steps=made.steps, outputs=outputs)


def normed_layers(width: int, layers: int, plain: bool = False) -> MlpSpec:
    """A LayerNorm after every linear. `plain`: without them."""
    made, value = Steps(), INPUT
    for _ in range(layers):
        product = made.linear(value, width)
        normed = product if plain else made.add(Norm, product, kind="layer")
        value = made.add(Elementwise, normed, function="relu")
    return MlpSpec(in_features=width, steps=made.steps)


SHAPES: dict[str, MlpSpec] = {
    "64-128-128-10 relu": spec_of((64, 128, 128, 10), "relu"),
    "784-512-256-10 relu": spec_of((784, 512, 256, 10), "relu"),
    "128x8 deep silu": spec_of((128,) * 9, "silu"),
    "256-1024-1024-256 gelu": spec_of((256, 1024, 1024, 256), "gelu"),
    "1024-4096-1024 gelu": spec_of((1024, 4096, 1024), "gelu"),
    "GeGLU 768-3072-768": spec_of((768, 3072, 768), "gelu", gated=True),
    "pre-LN tower 256x4": pre_norm_tower(256, 1024, 4),
    "tabular ResNet 192x4": tabular_resnet(32, 192, 4),
    "NeRF 63-256x8": nerf(63, 256),
    "actor-critic 64 tanh": actor_critic(17, 64, 6),
    "LayerNorm 512x4 relu": normed_layers(512, 4),
}
# The same products without their norms and additions, measured beside them: what those cost.
WITHOUT_NORMS: dict[str, str] = {
    "pre-LN tower 256x4": "256-1024-256 gelu x4",
    "LayerNorm 512x4 relu": "512x4 relu",
}
# Over the last-level cache in float32, and the second in int8 too: for the comparison of precisions.
LARGE: dict[str, MlpSpec] = {
    "2048x4 relu": spec_of((2048,) * 5, "relu"),
    "SwiGLU 4096-11008-4096": spec_of((4096, 11008, 4096), "silu", gated=True),
}
# Widths and batches that are no multiples of a tile, for the comparison beside other work.
ODD: dict[str, MlpSpec] = {
    "640-2560-640 relu": spec_of((640, 2560, 640), "relu"),
    "300-700-150-20 relu": spec_of((300, 700, 150, 20), "relu"),
}
BESIDE_SHAPES = (*ODD, *SHAPES)
BESIDE_BATCHES = (1, 33, 200, 1000)
PRECISION_SHAPES = (*list(SHAPES)[:6], *LARGE)
ALL: dict[str, MlpSpec] = {**SHAPES, **LARGE, **ODD} | {
    "256-1024-256 gelu x4": pre_norm_tower(256, 1024, 4, plain=True),
    "512x4 relu": normed_layers(512, 4, plain=True),
}


def build(name: str) -> Mlp:
    """The same weights in every process."""
    return with_random_weights(ALL[name])


def multiply_adds(name: str) -> int:
    """Per row."""
    return work_of(ALL[name]).product_flops // 2
