# SPDX-License-Identifier: Apache-2.0
"""Linear maps and gates in the spellings that people use instead of nn.Linear."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.models.zoo.entry import model


class Conv1D(nn.Module):
    """GPT-2's: weight (in, out)."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) * 0.1), nn.Parameter(torch.randn(nf))

    def forward(self, x):
        size_out = (*x.size()[:-1], self.nf)
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return x.view(size_out)


@model(6)
def conv1d_of_gpt2():
    return nn.Sequential(Conv1D(12, 6), nn.GELU("tanh"), Conv1D(6, 12))


@model(6)
class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(6, 10) * 0.3), nn.Parameter(torch.randn(4, 10) * 0.3)

    def forward(self, x):
        h = F.relu(torch.einsum("bi,ih->bh", x, self.w1))
        return torch.einsum("...h,oh->...o", h, self.w2)


@model(6)
class MatmulsOfParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList([torch.randn(9, 6) * 0.3, torch.randn(9, 3) * 0.3])
        self.b = nn.ParameterList([torch.randn(9), torch.randn(3)])

    def forward(self, x):
        h = torch.tanh(x @ self.w[0].t() + self.b[0])
        return torch.matmul(h, self.w[1]) + self.b[1]


@model(6)
class LowRankAdapter(nn.Module):
    """LoRA."""

    def __init__(self, r=2, alpha=4):
        super().__init__()
        self.base = nn.Linear(6, 8)
        self.lora_A, self.lora_B = nn.Linear(6, r, bias=False), nn.Linear(r, 8, bias=False)
        self.scaling, self.dropout = alpha / r, nn.Dropout(0.05)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(self.dropout(x))) * self.scaling


@model(6)
class EqualisedLearningRate(nn.Module):
    """The linear layer of StyleGAN, after its normalisation of the latent."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 6)), nn.Parameter(torch.randn(8))
        self.gain = 1 / math.sqrt(6)

    def forward(self, x):
        x = x * (x.square().mean(dim=1, keepdim=True) + 1e-8).rsqrt()
        return F.leaky_relu(F.linear(x, self.weight * self.gain, self.bias * 0.01), 0.2) * math.sqrt(2)


@model(6)
class MaskedLinear(nn.Module):
    """MADE."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)))

    def forward(self, x):
        return F.linear(x, self.mask * self.fc.weight, self.fc.bias)


@model(6)
class MonotonicNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(8, 6)), nn.Parameter(torch.randn(1, 8))
        self.b1 = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return F.linear(torch.tanh(F.linear(x, F.softplus(self.w1), self.b1)), self.w2.exp())


class NoisyLinear(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight_mu, self.weight_sigma = nn.Parameter(torch.randn(b, a)), nn.Parameter(torch.randn(b, a))
        self.bias_mu, self.bias_sigma = nn.Parameter(torch.randn(b)), nn.Parameter(torch.randn(b))
        self.register_buffer("weight_epsilon", torch.randn(b, a))
        self.register_buffer("bias_epsilon", torch.randn(b))

    def forward(self, x):
        if self.training:
            weight = self.weight_mu + self.weight_sigma * self.weight_epsilon
            return F.linear(x, weight, self.bias_mu + self.bias_sigma * self.bias_epsilon)
        return F.linear(x, self.weight_mu, self.bias_mu)


@model(4)
def noisy_network():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), NoisyLinear(8, 8), nn.ReLU(), NoisyLinear(8, 2))


@model(6)
class SwigluOfLlama(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(a, b, bias=False) for a, b in ((6, 16), (16, 6), (6, 16)))

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


@model(6)
class SwigluPacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.w12, self.w3 = nn.Linear(6, 32), nn.Linear(16, 6)

    def forward(self, x):
        x1, x2 = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(x1) * x2)


@model(6)
class GegluBySplit(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.out = nn.Linear(6, 32), nn.Linear(16, 6)

    def forward(self, x):
        value, gate = torch.split(self.proj(x), 16, dim=-1)
        return self.out(value * F.gelu(gate))


@model(6)
class RegluBySlices(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.out = nn.Linear(6, 32), nn.Linear(16, 6)

    def forward(self, x):
        h = self.proj(x)
        return self.out(h[..., :16] * torch.relu(h[..., 16:]))


@model(6)
def glu_of_torch():
    return nn.Sequential(nn.Linear(6, 16), nn.GLU(), nn.Linear(8, 12), nn.GLU(dim=1), nn.Linear(6, 2))


@model(6)
class BilinearGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 10), nn.Linear(6, 10), nn.Linear(10, 2)

    def forward(self, x):
        return self.c(self.a(x) * self.b(x))


@model(6)
class GatedResidualNetwork(nn.Module):
    """Of the Temporal Fusion Transformer."""

    def __init__(self):
        super().__init__()
        self.skip, self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(6, 12), nn.Linear(12, 12)
        self.gate, self.norm = nn.Linear(12, 16), nn.LayerNorm(8)

    def forward(self, x):
        h = self.fc2(F.elu(self.fc1(x)))
        return self.norm(F.glu(self.gate(h), dim=-1) + self.skip(x))


@model(8, example=True)
class CouplingLayer(nn.Module):
    """RealNVP."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1)
        s, t = self.net(x1).chunk(2, dim=1)
        return torch.cat([x1, x2 * torch.exp(torch.tanh(s)) + t], dim=1)


@model(8)
class StackedHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(4))

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=1)
