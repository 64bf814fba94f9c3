# SPDX-License-Identifier: Apache-2.0
"""Models with several outputs or with a special last layer: reinforcement learning, densities, embeddings, NeRF."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.models.zoo.entry import model


@model(8)
class DuelingDqn(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.value = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
        self.advantage = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        x = self.feature(x)
        value, advantage = self.value(x), self.advantage(x)
        return value + advantage - advantage.mean(dim=1, keepdim=True)


@model(6)
class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.actor, self.critic = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, obs):
        h = self.body(obs)
        return F.softmax(self.actor(h), dim=-1), self.critic(h).squeeze(-1)


@model(6)
class HeadsInADict(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 10)
        self.heads = nn.ModuleDict(
            {"click": nn.Linear(10, 1), "buy": nn.Linear(10, 1), "topic": nn.Linear(10, 5)}
        )

    def forward(self, x):
        h = F.relu(self.body(x))
        return {name: head(h) for name, head in self.heads.items()}


class Prediction(NamedTuple):
    mean: Tensor
    variance: Tensor


@model(6)
class HeadsInANamedTuple(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))

    def forward(self, x):
        mean, raw = self.net(x).unbind(-1)
        return Prediction(mean, F.softplus(raw) + 1e-6)


@model(7)
class SacActor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.mu, self.log_std = nn.Linear(16, 2), nn.Linear(16, 2)

    def forward(self, obs):
        h = self.net(obs)
        log_std = torch.clamp(self.log_std(h), -20, 2)
        return self.mu(h), log_std.exp()


@model(7)
class CleanRlActor(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc_mean, self.fc_logstd = nn.Linear(7, 16), nn.Linear(16, 2), nn.Linear(16, 2)
        self.register_buffer("action_scale", torch.tensor([1.5, 2.0]))
        self.register_buffer("action_bias", torch.tensor([0.5, -1.0]))

    def forward(self, x):
        x = F.relu(self.fc1(x))
        log_std = torch.tanh(self.fc_logstd(x))
        log_std = -5 + 0.5 * (2 - -5) * (log_std + 1)
        return torch.tanh(self.fc_mean(x)) * self.action_scale + self.action_bias, log_std


@model(9)
class TwinQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1 = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 1))
        self.q2 = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        state, action = x[:, :7], x[:, 7:]
        both = torch.cat([state, action], 1)
        return torch.min(self.q1(both), self.q2(both))


@model(7)
class DeterministicActor(nn.Module):
    """TD3."""

    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.max_action = nn.Linear(7, 16), nn.Linear(16, 2), 2.5

    def forward(self, state):
        return self.max_action * torch.tanh(self.l2(F.relu(self.l1(state))))


@model(4)
class MixtureDensity(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.k = k
        self.net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3 * k))

    def forward(self, x):
        pi, mu, sigma = torch.split(self.net(x), self.k, dim=1)
        return {"pi": F.softmax(pi, dim=1), "mu": mu, "sigma": torch.exp(sigma)}


@model(8)
class VariationalEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.fc_mu, self.fc_var = nn.Linear(8, 12), nn.Linear(12, 2), nn.Linear(12, 2)
        self.decoder = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 8), nn.Sigmoid())

    def reparameterize(self, mu, logvar):
        if self.training:
            return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return mu

    def forward(self, x):
        h = F.relu(self.fc(x))
        mu, logvar = self.fc_mu(h), self.fc_var(h)
        return self.decoder(self.reparameterize(mu, logvar)), mu, logvar


@model(10)
class EmbeddingHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 6))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


@model(10)
class NormaliseByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(10, 6)

    def forward(self, x):
        x = self.net(x)
        return x / x.norm(dim=-1, keepdim=True)


@model(10)
class CosineClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 6)
        self.weight, self.scale = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.tensor(10.0))

    def forward(self, x):
        return self.scale * F.linear(F.normalize(self.fc(x)), F.normalize(self.weight))


class Encoding(nn.Module):
    def __init__(self, octaves):
        super().__init__()
        self.frequencies = [2.0**i for i in range(octaves)]

    def forward(self, x):
        return torch.cat([x] + [f(x * w) for w in self.frequencies for f in (torch.sin, torch.cos)], dim=-1)


@model(6, example=True)
class Nerf(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.encode_x, self.encode_d = Encoding(3), Encoding(2)
        self.pts = nn.ModuleList(
            [nn.Linear(21, width)] + [nn.Linear(width + (21 if i == 4 else 0), width) for i in range(1, 8)]
        )
        self.sigma, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.views, self.rgb = nn.Linear(width + 15, width // 2), nn.Linear(width // 2, 3)

    def forward(self, x):
        points, directions = torch.split(x, [3, 3], dim=-1)
        points, directions = self.encode_x(points), self.encode_d(directions)
        h = points
        for i, layer in enumerate(self.pts):
            if i == 4:
                h = torch.cat([points, h], -1)
            h = F.relu(layer(h))
        sigma = F.relu(self.sigma(h))
        h = F.relu(self.views(torch.cat([self.feature(h), directions], -1)))
        return torch.cat([torch.sigmoid(self.rgb(h)), sigma], -1)


@model(8)
class OrdinalHead(nn.Module):
    """CORAL: one slope, several thresholds."""

    def __init__(self):
        super().__init__()
        self.body, self.weight = nn.Linear(8, 6), nn.Linear(6, 1, bias=False)
        self.thresholds = nn.Parameter(torch.arange(4, dtype=torch.float32))

    def forward(self, x):
        return torch.sigmoid(self.weight(F.relu(self.body(x))) + self.thresholds)


@model(8)
class AverageOfAnEnsemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)) for _ in range(3)
        )

    def forward(self, x):
        return torch.stack([member(x) for member in self.members]).mean(0)


@model(8)
class CategoricalDqn(nn.Module):
    """C51: a distribution for each action, and its mean."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3 * 5))
        self.register_buffer("atoms", torch.linspace(-2, 2, 5))

    def forward(self, x):
        probabilities = torch.softmax(self.net(x).view(-1, 3, 5), dim=2)
        return (probabilities * self.atoms).sum(2)


# What is no MLP, and what people may bring all the same.


@model(8, refused="attention")
class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = x.unsqueeze(0)
        return self.attn(x, x, x, need_weights=False)[0].squeeze(0)


@model(1, 8, 8, example=True, refused="conv")
class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 2, 3), nn.Linear(72, 2)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).flatten(1))


@model(4, refused="rows")
class NormOverTheBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        x = self.fc(x)
        return x - x.mean(0, keepdim=True)


@model(4, refused="statistics")
class StatisticsOfTheBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, x):
        return self.bn(self.fc(x))


@model(4, refused="rand")
class Sampling(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        x = self.fc(x)
        return x + torch.randn_like(x)
