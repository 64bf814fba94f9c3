# SPDX-License-Identifier: Apache-2.0
"""The ranker of docs/models/rankers.md, in repo/ranker/1."""

import torch
from torch import nn

import fused_mlp


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(1000, 16), nn.Embedding(500, 16)
        self.mlp = nn.Sequential(nn.Linear(16 + 16 + 3, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user: torch.Tensor, item: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(torch.cat([self.users(user), self.items(item), x], dim=1))


example = {"user": torch.tensor([7]), "item": torch.tensor([3]), "x": torch.zeros(1, 3)}
fused_mlp.save(fused_mlp.from_torch(Ranker(), example=example), "repo/ranker/1")
