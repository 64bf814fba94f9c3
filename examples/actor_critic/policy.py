"""A policy with two heads, and the cart-pole environment that it acts in."""

import math

import torch
from torch import Tensor, nn


class ActorCritic(nn.Module):
    """State (rows, 4) to the logits of both actions and the expected return of the state."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor = nn.Linear(width, 2)
        self.critic = nn.Linear(width, 1)

    def forward(self, state: Tensor) -> dict[str, Tensor]:
        h = self.body(state)
        return {"logits": self.actor(h), "value": self.critic(h).squeeze(-1)}


class CartPole:
    """A pole on a cart that is pushed left (0) or right (1); a step while the pole stands is worth 1."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.state = (0.1 * torch.rand(4, generator=generator) - 0.05).tolist()  # x, speed, angle, turn

    def step(self, action: int) -> bool:
        """Whether the pole has fallen, or the cart has left the track."""
        x, speed, angle, turn = self.state
        push = (10.0 if action == 1 else -10.0) + 0.05 * turn**2 * math.sin(angle)
        gain = 9.8 * math.sin(angle) - math.cos(angle) * push / 1.1
        spin = gain / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        pull = push / 1.1 - 0.05 * spin * math.cos(angle) / 1.1
        self.state = [x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turn, turn + 0.02 * spin]
        return abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
