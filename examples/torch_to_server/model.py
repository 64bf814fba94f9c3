"""A model as you would write it in torch: a class with a residual connection and three classes of points."""

import math

import torch
from torch import Tensor, nn


class Spirals(nn.Module):
    """Says which of three spirals a point of the plane lies on."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.norm = nn.LayerNorm(width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        h = h + torch.relu(self.second(self.norm(h)))
        return torch.softmax(self.last(h), dim=-1)


def make_points(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (rows, 2) and the spiral of each (rows,)."""
    generator = torch.Generator().manual_seed(seed)
    spiral = torch.randint(0, 3, (rows,), generator=generator)
    radius = torch.rand(rows, generator=generator)
    noise = 0.3 * torch.randn(rows, generator=generator)
    angle = 4 * radius + spiral * 2 * math.pi / 3 + noise
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), spiral
