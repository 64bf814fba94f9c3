# SPDX-License-Identifier: Apache-2.0
"""Networks as tutorials, notebooks and papers write them: plain ones, blocks with norms and skips."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn
from torch.nn.utils import parametrizations

from tests.models.zoo.entry import model


@model(8)
class FunctionalForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


@model(1, 8, 8)
class MnistOfTheTutorials(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 10)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        x = x.view(-1, 64)
        x = self.dropout(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


@model(1, 4, 4)
class FlattenBySize(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 12), nn.ReLU(inplace=True), nn.Linear(12, 4))

    def forward(self, x):
        x = x.view(x.size(0), -1)
        return torch.softmax(self.body(x), dim=-1)


@model(3, 4, 4)
class FlattenOfImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.head = nn.Sequential(nn.Linear(48, 10), nn.Tanh(), nn.Linear(10, 2))

    def forward(self, x):
        return self.head(self.flatten(x))


@model(6)
def nested_sequentials():
    block = lambda a, b: nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.LeakyReLU(0.2, inplace=True))  # noqa: E731
    return nn.Sequential(
        nn.Sequential(block(6, 12), block(12, 12)), nn.Sequential(nn.Identity(), nn.Linear(12, 1))
    )


@model(6)
class LoopOverAModuleList(nn.Module):
    def __init__(self, widths=(6, 16, 12, 8, 2)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.act = nn.ELU(alpha=0.7)

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < len(self.layers) - 1:
                x = self.act(x)
        return x


@model(5)
class MixedListsOfLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(5, 9), nn.LayerNorm(9), nn.SiLU(), nn.Dropout(0.1), nn.Linear(9, 2)]
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@model(12)
class ResidualBlocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 12)) for _ in range(3)
        )
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(F.relu(x))


class PreNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        shortcut = x
        x = self.fc2(F.gelu(self.fc1(self.norm(x))))
        return x + shortcut


@model(7)
def pre_norm_tower():
    return nn.Sequential(
        nn.Linear(7, 16), PreNorm(16), PreNorm(16), PreNorm(16), nn.LayerNorm(16), nn.Linear(16, 3)
    )


@model(16)
class PostNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16, eps=1e-12), nn.LayerNorm(16, elementwise_affine=False)

    def forward(self, x):
        x = self.norm1(x + self.fc2(F.gelu(self.fc1(x), approximate="tanh")))
        return self.norm2(x)


@model(9)
class BatchNormEverywhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn0 = nn.BatchNorm1d(9)
        self.fc1, self.bn1 = nn.Linear(9, 20, bias=False), nn.BatchNorm1d(20)
        self.fc2, self.bn2 = nn.Linear(20, 5), nn.BatchNorm1d(5, affine=False)

    def forward(self, x):
        x = F.relu(self.bn1(self.fc1(self.bn0(x))))
        return self.bn2(torch.tanh(self.fc2(x)))


@model(10)
class TabularResNet(nn.Module):
    """BatchNorm after the skip, where no linear layer is beside it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 24)
        self.norms = nn.ModuleList(nn.BatchNorm1d(24) for _ in range(2))
        self.lifts = nn.ModuleList(nn.Linear(24, 48) for _ in range(2))
        self.drops = nn.ModuleList(nn.Linear(48, 24) for _ in range(2))
        self.last_norm, self.head = nn.BatchNorm1d(24), nn.Linear(24, 1)

    def forward(self, x):
        x = self.first(x)
        for norm, lift, drop in zip(self.norms, self.lifts, self.drops, strict=True):
            z = F.dropout(F.relu(lift(norm(x))), 0.2, self.training)
            x = x + F.dropout(drop(z), 0.1, self.training)
        return self.head(F.relu(self.last_norm(x))).squeeze(-1)


@model(4)
def regression_with_squeeze():
    class Regressor(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 32), nn.Softplus(), nn.Linear(32, 1))

        def forward(self, x):
            return self.net(x).squeeze(1)

    return Regressor()


@model(4)
class BinaryClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return torch.sigmoid(self.fc2(self.fc1(x).relu()))[:, 0]


@model(4)
class ViewMinusOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x))).view(-1)


@model(6)
class ConcatSkip(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 10), nn.Linear(16, 10), nn.Linear(26, 2)

    def forward(self, x):
        h1 = F.relu(self.a(x))
        h2 = F.relu(self.b(torch.cat([h1, x], dim=1)))
        return self.c(torch.cat((h2, h1, x), -1))


@model(5)
class DenseNetOfLinears(nn.Module):
    def __init__(self, growth=7, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5 + growth * i, growth) for i in range(depth))
        self.head = nn.Linear(5 + growth * depth, 3)

    def forward(self, x):
        features = [x]
        for layer in self.layers:
            features.append(F.silu(layer(torch.cat(features, dim=-1))))
        return self.head(torch.cat(features, dim=-1))


@model(11)
class SharedLayerThreeTimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(11, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = torch.tanh(self.shared(x))
        return self.last(x)


@model(6)
class EulerSteps(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 6))

    def forward(self, x):
        for _ in range(4):
            x = x + 0.25 * self.f(x)
        return x


@model(5)
class NormalisedInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(5))
        self.register_buffer("std", torch.rand(5) + 0.5)
        self.net = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 2))
        self.register_buffer("y_mean", torch.randn(2))
        self.register_buffer("y_std", torch.rand(2) + 0.5)

    def forward(self, x):
        return self.net((x - self.mean) / (self.std + 1e-8)) * self.y_std + self.y_mean


@model(5)
class ClampedObservations(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(5))
        self.register_buffer("var", torch.rand(5) + 0.5)
        self.pi = nn.Linear(5, 3)

    def forward(self, x):
        x = torch.clamp((x - self.mean) / torch.sqrt(self.var + 1e-8), -5.0, 5.0)
        return self.pi(x)


@model(2)
class PhysicsInformed(nn.Module):
    """Bounds as plain attributes, inputs scaled to [-1, 1]."""

    def __init__(self):
        super().__init__()
        self.lb, self.ub = torch.tensor([0.0, -1.0]), torch.tensor([2.0, 3.0])
        self.net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))

    def forward(self, x):
        return self.net(2.0 * (x - self.lb) / (self.ub - self.lb) - 1.0)


@model(9)
def self_normalising():
    return nn.Sequential(
        nn.Linear(9, 16), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(16, 16), nn.SELU(), nn.Linear(16, 2)
    )


@model(9)
class FunctionalDropouts(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(9, 9), nn.Linear(9, 9)

    def forward(self, x):
        x = F.dropout(F.relu6(self.fc1(x)), p=0.3, training=self.training)
        return F.alpha_dropout(F.hardswish(self.fc2(x)), 0.1, self.training)


@model(10)
class MeanOfTheFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 6)

    def forward(self, x):
        return F.relu(self.fc(x)).mean(-1)


@model(10)
class SumAndMeanFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(10, 6), nn.Linear(8, 2)

    def forward(self, x):
        h = self.fc(x)
        return self.out(torch.cat([h, h.mean(dim=1, keepdim=True), h.sum(1, keepdim=True)], dim=1))


@model(6)
def weight_norm_of_today():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 9)), nn.ReLU(), nn.Linear(9, 2))


@model(6)
def weight_norm_of_old():
    return nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(6, 9)), nn.ReLU(), nn.Linear(9, 2))


@model(6)
def spectral_norm():
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 9)), nn.LeakyReLU(0.2), nn.Linear(9, 1))


@model(16)
class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.gamma = nn.Parameter(1e-2 * torch.ones(16))
        self.alpha = nn.Parameter(torch.zeros(1))  # ReZero

    def forward(self, x):
        x = x + self.gamma * self.fc2(F.gelu(self.fc1(self.norm(x))))
        return x + self.alpha * self.fc1(x)[:, :16]


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        mask = torch.floor(
            keep + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype, device=x.device)
        )
        return x.div(keep) * mask


@model(12)
class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp, self.drop_path = (
            nn.Sequential(nn.Linear(12, 12), nn.Mish(), nn.Linear(12, 12)),
            DropPath(0.3),
        )

    def forward(self, x):
        return x + self.drop_path(self.mlp(x))


@model(12)
class MixerChannelMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.mlp = nn.Sequential(
            nn.Linear(12, 24), nn.GELU(), nn.Dropout(0.0), nn.Linear(24, 12), nn.Dropout(0.0)
        )

    def forward(self, x):
        return x + self.mlp(self.norm(x))


@model(8)
class SqueezeExcitation(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 16)
        self.squeeze = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16), nn.Sigmoid())

    def forward(self, x):
        x = self.fc(x)
        return x * self.squeeze(x)


@model(8)
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2))
        self.decoder = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 8))

    def forward(self, x):
        return self.decoder(self.encoder(x))


@model(10)
class WideAndDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(10, 1)
        self.deep = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, x):
        return torch.sigmoid(self.wide(x) + self.deep(x))


@model(10)
class DeepAndCross(nn.Module):
    def __init__(self):
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(10, 10) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(18, 1)

    def forward(self, x0):
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return self.head(torch.cat([x, self.deep(x0)], dim=1))


@model(10)
class FactorisationMachineAndDeepPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 1)
        self.v = nn.Parameter(torch.randn(10, 4) * 0.1)
        self.deep = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        square_of_sum = torch.mm(x, self.v).pow(2).sum(1, keepdim=True)
        sum_of_square = torch.mm(x.pow(2), self.v.pow(2)).sum(1, keepdim=True)
        return torch.sigmoid(self.linear(x) + 0.5 * (square_of_sum - sum_of_square) + self.deep(x)).squeeze(1)


@model(7)
class MaxoutOfTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(7, 9), nn.Linear(7, 9), nn.Linear(9, 2)

    def forward(self, x):
        return self.out(torch.max(self.a(x), self.b(x)))


@model(6)
class Highway(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.t = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        for h, t in zip(self.h, self.t, strict=True):
            gate = torch.sigmoid(t(x))
            x = gate * F.relu(h(x)) + (1 - gate) * x
        return x


@model(14, example=True)
class FeaturewiseModulation(nn.Module):
    """FiLM: the second part of the input scales and shifts what the first becomes."""

    def __init__(self):
        super().__init__()
        self.body, self.film, self.out = nn.Linear(10, 8), nn.Linear(4, 16), nn.Linear(8, 2)

    def forward(self, x):
        x, condition = x[:, :10], x[:, 10:]
        gamma, beta = self.film(condition).chunk(2, dim=-1)
        return self.out(F.relu((1 + gamma) * self.body(x) + beta))


@model(8)
class SoftMixtureOfExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)) for _ in range(3)
        )

    def forward(self, x):
        weights = F.softmax(self.gate(x), dim=1)
        return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


@model(8)
class PreActivation(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x):
        return torch.add(x, self.layers(x), alpha=0.1)


@model(6)
class HandWrittenRmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 12), nn.Linear(12, 3)
        self.weight = nn.Parameter(torch.ones(12))

    def norm(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(x.dtype)

    def forward(self, x):
        return self.fc2(self.norm(self.fc1(x)))


@model(6)
def rms_norm_of_torch():
    return nn.Sequential(
        nn.Linear(6, 12), nn.RMSNorm(12), nn.SiLU(), nn.RMSNorm(12, eps=1e-3), nn.Linear(12, 2)
    )


@model(6)
class AnnotatedLayerNorm(nn.Module):
    """That of the Annotated Transformer: the unbiased deviation, and eps outside the root."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 12)
        self.a_2, self.b_2 = nn.Parameter(torch.ones(12)), nn.Parameter(torch.zeros(12))

    def forward(self, x):
        x = self.fc(x)
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + 1e-6) + self.b_2


@model(6)
class HandWrittenLayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 12)
        self.g, self.b = nn.Parameter(torch.ones(12)), nn.Parameter(torch.zeros(12))

    def forward(self, x):
        x = self.fc(x)
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        return self.g * ((x - u) / torch.sqrt(s + 1e-6)) + self.b


@model(6)
def group_norm_of_features():
    return nn.Sequential(nn.Linear(6, 12), nn.GroupNorm(3, 12), nn.ReLU(), nn.Linear(12, 2))


@model(5)
class InputTwiceToItself(nn.Module):
    """DCN of the first kind: a product with one number per row."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Linear(5, 1, bias=False), nn.Parameter(torch.randn(5))

    def forward(self, x):
        return x * self.w(x) + self.b + x


@model(5, example=True)
class PolynomialFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(20, 3)

    def forward(self, x):
        return self.fc(torch.cat([x, x**2, torch.sin(x), torch.log1p(x.abs())], dim=-1))


@model(5)
class KolmogorovArnold(nn.Module):
    """Two layers of B-splines, as efficient-kan computes them: conditions that are joined with &, and a recursion."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Splines(5, 8), Splines(8, 3)

    def forward(self, x):
        return self.second(self.first(x))


class Splines(nn.Module):
    def __init__(self, in_features, out_features, size=5, order=3):
        super().__init__()
        self.order = order
        points = torch.arange(-order, size + order + 1) * 2 / size - 1
        self.register_buffer("grid", points.expand(in_features, -1).contiguous())
        self.base = nn.Parameter(torch.randn(out_features, in_features) / 2)
        self.spline = nn.Parameter(torch.randn(out_features, in_features, size + order) / 2)
        self.scale = nn.Parameter(torch.randn(out_features, in_features))

    def bases(self, x):
        x, grid = x.unsqueeze(-1), self.grid
        made = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            rising = (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
            falling = (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:(-k)])
            made = rising * made[:, :, :-1] + falling * made[:, :, 1:]
        return made.contiguous()

    def forward(self, x):
        spline = (self.spline * self.scale.unsqueeze(-1)).view(len(self.base), -1)
        return F.linear(F.silu(x), self.base) + F.linear(self.bases(x).view(x.size(0), -1), spline)
