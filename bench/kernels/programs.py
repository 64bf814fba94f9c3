"""Models that are no chains of layers, as people write them: residual towers, skips, heads, norms. Knows no engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.spec import INPUT, Affine, Combine, Concat, Elementwise, Linear, Norm, Output


def residual_tower(width: int = 256, hidden: int = 1024, blocks: int = 4, plain: bool = False) -> MlpSpec:
    """Pre-LN: x + down(gelu(up(norm(x)))). `plain`: the same products without norms and additions."""
    steps: list[Any] = []
    value = INPUT
    for block in range(blocks):
        name, source = f"blocks.{block}", value
        if not plain:
            steps.append(Norm(name=f"{name}.norm", input=value, kind="layer"))
            value = f"{name}.norm"
        steps += [
            Linear(name=f"{name}.up", input=value, out_features=hidden),
            Elementwise(name=f"{name}.gelu", input=f"{name}.up", function="gelu"),
            Linear(name=f"{name}.down", input=f"{name}.gelu", out_features=width),
        ]
        value = f"{name}.down"
        if not plain:
            steps.append(Combine(name=f"{name}.add", op="add", inputs=(source, value)))
            value = f"{name}.add"
    return MlpSpec(in_features=width, steps=tuple(steps))


def tabular_resnet(width: int = 192, blocks: int = 4) -> MlpSpec:
    """RTDL's: x + fc2(relu(fc1(batch_norm(x)))), then batch norm, relu and the head."""
    steps: list[Any] = [Linear(name="first", input=INPUT, out_features=width)]
    value = "first"
    for block in range(blocks):
        name = f"blocks.{block}"
        steps += [
            Affine(name=f"{name}.norm", input=value),
            Linear(name=f"{name}.fc1", input=f"{name}.norm", out_features=2 * width),
            Elementwise(name=f"{name}.relu", input=f"{name}.fc1", function="relu"),
            Linear(name=f"{name}.fc2", input=f"{name}.relu", out_features=width),
            Combine(name=f"{name}.add", op="add", inputs=(value, f"{name}.fc2")),
        ]
        value = f"{name}.add"
    steps += [
        Affine(name="norm", input=value),
        Elementwise(name="relu", input="norm", function="relu"),
        Linear(name="head", input="relu", out_features=10),
    ]
    return MlpSpec(in_features=64, steps=tuple(steps))


def nerf(width: int = 256, depth: int = 8, skip: int = 4) -> MlpSpec:
    """The positional encoding again after layer `skip`; 4 outputs."""
    steps: list[Any] = []
    value = INPUT
    for layer in range(depth):
        steps += [
            Linear(name=f"layers.{layer}", input=value, out_features=width),
            Elementwise(name=f"relu.{layer}", input=f"layers.{layer}", function="relu"),
        ]
        value = f"relu.{layer}"
        if layer == skip:
            steps.append(Concat(name="skip", inputs=(INPUT, value)))
            value = "skip"
    steps.append(Linear(name="out", input=value, out_features=4))
    return MlpSpec(in_features=63, steps=tuple(steps))


def actor_critic(observations: int = 17, width: int = 64, actions: int = 6) -> MlpSpec:
    """One trunk, two heads."""
    steps: list[Any] = []
    value = INPUT
    for layer in range(2):
        steps += [
            Linear(name=f"trunk.{layer}", input=value, out_features=width),
            Elementwise(name=f"tanh.{layer}", input=f"trunk.{layer}", function="tanh"),
        ]
        value = f"tanh.{layer}"
    steps += [
        Linear(name="pi", input=value, out_features=actions),
        Linear(name="v", input=value, out_features=1),
    ]
    heads = (Output(name="pi", value="pi"), Output(name="v", value="v"))
    return MlpSpec(in_features=observations, steps=tuple(steps), outputs=heads)


def normed_layers(width: int = 512, depth: int = 4, plain: bool = False) -> MlpSpec:
    """relu(norm(linear(x))). `plain`: without the norms."""
    steps: list[Any] = []
    value = INPUT
    for layer in range(depth):
        steps.append(Linear(name=f"fc.{layer}", input=value, out_features=width))
        value = f"fc.{layer}"
        if not plain:
            steps.append(Norm(name=f"norm.{layer}", input=value, kind="layer"))
            value = f"norm.{layer}"
        steps.append(Elementwise(name=f"relu.{layer}", input=value, function="relu"))
        value = f"relu.{layer}"
    return MlpSpec(in_features=width, steps=tuple(steps))


def with_weights(spec: MlpSpec) -> Mlp:
    """The same weights every time: of matrices 1 / sqrt(in) each, of norms around one."""
    generator = np.random.default_rng(1)
    tensors = {}
    for name, shape in spec.shapes():
        values = generator.standard_normal(shape, np.float32)
        if len(shape) == 2:
            values /= np.float32(shape[1] ** 0.5)
        elif "norm" in name and name.endswith("weight"):
            values = 1 + np.float32(0.1) * values
        tensors[name] = values
    return Mlp(spec, tensors)
