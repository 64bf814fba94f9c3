# SPDX-License-Identifier: Apache-2.0
"""A repository of many models without the time that writing them takes: links to one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fused_mlp import models
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.spec import LayerSpec

WIDTH = 4


def tiny_mlp(seed: int = 1) -> Mlp:
    spec = MlpSpec.of_layers(WIDTH, [LayerSpec(out_features=8, activation="relu"), LayerSpec(out_features=3)])
    random = np.random.default_rng(seed)
    tensors = {name: random.normal(size=shape).astype(np.float32) for name, shape in spec.shapes()}
    return Mlp(spec, tensors, example=[1.0] * WIDTH)


def make_fleet(root: Path, count: int) -> list[str]:
    """The names of the models: `m000`, ..."""
    names = [f"m{number:03}" for number in range(count)]
    models.save(tiny_mlp(), root / names[0] / "1")
    for name in names[1:]:
        (root / name).symlink_to(root / names[0])
    return names
