# SPDX-License-Identifier: Apache-2.0
"""repo/net/1: a small model, as an import leaves it; net.safetensors, the checkpoint of a second version; rows.npy, and
what that version makes of them, outputs.npy. Without torch, which takes seconds to import."""

import numpy as np
from safetensors.numpy import save_file

import fused_mlp

generator = np.random.default_rng(0)


def weights() -> dict[str, np.ndarray]:
    shapes = {"0.weight": (16, 8), "0.bias": (16,), "2.weight": (4, 16), "2.bias": (4,)}
    return {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


save_file(weights(), "first.safetensors")
fused_mlp.save(fused_mlp.from_safetensors("first.safetensors", activation="relu"), "repo/net/1")

net = weights()
save_file(net, "net.safetensors")
x = generator.standard_normal((32, 8), np.float32)
hidden = np.maximum(x @ net["0.weight"].T + net["0.bias"], 0)
np.save("rows.npy", x)
np.save("outputs.npy", hidden @ net["2.weight"].T + net["2.bias"])
