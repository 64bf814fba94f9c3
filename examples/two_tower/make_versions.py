# SPDX-License-Identifier: Apache-2.0
"""A two-tower model, cut in two: repository/users, and repository/items with the vectors of all items."""

import numpy as np
import torch
from torch import nn

import fused_mlp
from fused_mlp.models import LayerSpec
from fused_mlp.models.weights.precision import reduce_precision

USERS, ITEMS, WIDTH = 1_000, 100_000, 64


class TwoTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 32), nn.Embedding(ITEMS, 32)
        self.user = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, WIDTH))
        self.item = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, WIDTH))

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return nn.functional.cosine_similarity(self.user(self.users(user)), self.item(self.items(item)))


torch.manual_seed(0)
example = {"user": torch.tensor([1]), "item": torch.tensor([2])}
users, items = fused_mlp.split(fused_mlp.from_torch(TwoTower(), example=example))
fused_mlp.save(users, "repository/users/1")

vectors = fused_mlp.compile(items)({"item": np.arange(ITEMS)})
np.save("vectors.npy", vectors)
spec = fused_mlp.MlpSpec(in_features=WIDTH, layers=(LayerSpec(out_features=ITEMS, bias=False),))
search = fused_mlp.Mlp(spec, {"layers.0.weight": vectors})
fused_mlp.save(search, "repository/items/1")
fused_mlp.save(reduce_precision(search, "int8"), "repository/items_int8/1")
