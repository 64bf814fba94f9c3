# SPDX-License-Identifier: Apache-2.0
"""Small programs that are no chains, with weights: for tests of what reaches the world."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fused_mlp import models
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.spec import Combine, Elementwise, Linear, Norm, Output, Softmax


def actor_critic() -> MlpSpec:
    """Two heads: probabilities with labels, and a value that the model squeezes."""
    return MlpSpec(
        in_features=8,
        steps=(
            Linear(name="trunk.0", input="input", out_features=16),
            Elementwise(name="trunk.1", input="trunk.0", function="tanh"),
            Linear(name="pi", input="trunk.1", out_features=4),
            Softmax(name="pi.probabilities", input="pi"),
            Linear(name="v", input="trunk.1", out_features=1),
        ),
        outputs=(Output(name="pi", value="pi.probabilities"), Output(name="v", value="v", squeeze=True)),
        labels=("left", "right", "up", "down"),
    )


def images() -> MlpSpec:
    """Takes (rows, 1, 4, 4), flattens it, and answers (rows,)."""
    return MlpSpec(
        in_features=16,
        input_shape=(1, 4, 4),
        steps=(Linear(name="fc", input="input", out_features=1),),
        outputs=(Output(value="fc", squeeze=True),),
    )


def tower(blocks: int = 3) -> MlpSpec:
    """Residual blocks with a norm each."""
    steps = []
    value = "input"
    for index in range(blocks):
        block = f"blocks.{index}"
        steps += [
            Norm(name=f"{block}.norm", input=value, kind="layer"),
            Linear(name=f"{block}.fc1", input=f"{block}.norm", out_features=24),
            Elementwise(name=f"{block}.act", input=f"{block}.fc1", function="gelu"),
            Linear(name=f"{block}.fc2", input=f"{block}.act", out_features=12),
            Combine(name=f"{block}.add", op="add", inputs=(value, f"{block}.fc2")),
        ]
        value = f"{block}.add"
    steps.append(Linear(name="head", input=value, out_features=3))
    return MlpSpec(in_features=12, steps=tuple(steps))


def with_weights(spec: MlpSpec) -> Mlp:
    random = np.random.default_rng(0)
    tensors = {
        name: (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in spec.shapes()
    }
    return Mlp(spec, tensors, example=random.standard_normal(spec.in_features).tolist())


PROGRAMS = {
    "policy": with_weights(actor_critic()),
    "images": with_weights(images()),
    "tower": with_weights(tower()),
}


def save_programs(root: Path) -> Path:
    """A repository of them."""
    for name, mlp in PROGRAMS.items():
        models.save(mlp, root / name / "1")
    return root
