# SPDX-License-Identifier: Apache-2.0
"""A repository `repo` with two versions of the model `net`; a checkpoint, weights.safetensors; some rows, rows.csv."""

import numpy as np
from safetensors.numpy import save_file

from fused_mlp.models.importers.importer import import_model

random = np.random.default_rng(0)
for _ in range(2):
    tensors = {
        "0.weight": random.standard_normal((16, 8), np.float32),
        "0.bias": np.zeros(16, np.float32),
        "2.weight": random.standard_normal((3, 16), np.float32),
        "2.bias": np.zeros(3, np.float32),
    }
    save_file(tensors, "weights.safetensors")
    import_model("weights.safetensors", "repo", "net", activation="relu", example=[0.5] * 8)
np.savetxt("rows.csv", random.standard_normal((20, 8)), fmt="%.3f", delimiter=",")
