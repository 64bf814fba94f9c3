"""Writes three versions of a model to the folder repository: the second as fast as the first, the third far slower."""

from itertools import pairwise
from pathlib import Path

import numpy as np

import fused_mlp

rng = np.random.default_rng(0)


def make_weights(*dims: int) -> dict[str, np.ndarray]:
    """Of linear layers, by the names that torch gives them."""
    weights = {}
    for index, (columns, rows) in enumerate(pairwise(dims)):
        scale = np.float32(np.sqrt(2 / columns))
        weights[f"layers.{index}.weight"] = scale * rng.standard_normal((rows, columns), np.float32)
        weights[f"layers.{index}.bias"] = np.zeros(rows, np.float32)
    return weights


for version, width in ((1, 64), (2, 64), (3, 3072)):
    mlp = fused_mlp.from_state_dict(make_weights(32, width, width, 4), activation="relu")
    fused_mlp.save(mlp, Path("repository", "ranker", str(version)))
    print(f"ranker/{version}: {mlp.spec.summary()}")
