# SPDX-License-Identifier: Apache-2.0
"""Modules as people write them: the idioms that from_torch must take, each with the summary of what it becomes."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import Tensor, nn


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(20, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class PreNormTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(10, 8)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(8), "fc1": nn.Linear(8, 12), "fc2": nn.Linear(12, 8)})
            for _ in range(3)
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            hidden = F.gelu(block["fc1"](block["norm"](x)))
            x = x + F.dropout(block["fc2"](hidden), 0.1, self.training)
        return self.head(self.norm(x))


class TabularResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(9, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(6), nn.Linear(6, 12), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(12, 6)
            )
            for _ in range(2)
        )
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(F.relu(self.norm(x))).squeeze(-1)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.pi, self.v = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x):
        hidden = self.body(x)
        return {"pi": F.softmax(self.pi(hidden), -1), "v": self.v(hidden).squeeze(-1)}


@dataclass
class Answer:
    mean: Tensor
    scale: Tensor
    extra: None = None


class GaussianPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(11, 16), nn.Linear(16, 6)

    def forward(self, x):
        mean, log_scale = self.head(F.relu(self.body(x))).chunk(2, -1)
        return Answer(torch.tanh(mean), torch.exp(log_scale.clamp(-5, 2)))


class Nerf(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(7, 16), nn.Linear(16, 16), nn.Linear(23, 16)])
        self.rgb, self.density = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x):
        hidden = x
        for i, layer in enumerate(self.layers):
            hidden = F.relu(layer(hidden))
            if i == 1:
                hidden = torch.cat([x, hidden], -1)
        return torch.cat([torch.sigmoid(self.rgb(hidden)), F.softplus(self.density(hidden))], -1)


class PositionalEncoding(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(4))
        self.head = nn.Linear(27, 2)

    def forward(self, x):
        angles = (x[..., None] * self.frequencies).flatten(-2)
        return self.head(torch.cat([x, angles.sin(), angles.cos()], -1))


class Highway(nn.Module):
    def __init__(self):
        super().__init__()
        self.carry, self.gate = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        return gate * F.relu(self.carry(x)) + (1 - gate) * x


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList([nn.Linear(4, 3), nn.Linear(7, 3)]), nn.Linear(10, 2)

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            found.append(F.elu(layer(torch.cat(found, 1)), 0.5))
        return self.head(torch.cat(found, 1))


class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(torch.sin(30 * self.first(x)))


class Llama(nn.Module):
    """Gate, up and down as in transformers, behind its RMSNorm."""

    def __init__(self, act_fn=None, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6) + 0.5)
        self.gate_proj, self.up_proj = nn.Linear(6, 9, bias=bias), nn.Linear(6, 9, bias=False)
        self.down_proj = nn.Linear(9, 6, bias=bias)
        self.act_fn = act_fn or nn.SiLU()

    def forward(self, x):
        hidden = x.to(torch.float32)
        hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
        hidden = self.weight * hidden.to(x.dtype)
        return x + self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden))


class ChunkedGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.both, self.out = nn.Linear(6, 18), nn.Linear(9, 6)

    def forward(self, x):
        value, gate = self.both(x).chunk(2, dim=-1)
        return self.out(value * F.gelu(gate))


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 9), nn.Linear(6, 9)

    def forward(self, x):
        return self.left(x) * self.right(x)


class Conv1D(nn.Module):
    """The linear layer of GPT-2."""

    def __init__(self, width, features):
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.randn(features, width) * 0.1)
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        shape = (*x.size()[:-1], self.width)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(12, 6), Conv1D(6, 12)

    def forward(self, x):
        x = self.c_fc(x)
        x = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
        return self.c_proj(x)


class HandWritten(nn.Module):
    """LayerNorm and gelu, spelled out."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.gain, self.offset = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

    def forward(self, x):
        x = self.fc(x)
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        x = self.gain * (x - mean) / torch.sqrt(variance + 1e-5) + self.offset
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 8)
        self.a, self.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(8, 2))

    def forward(self, x):
        return F.linear(x, self.base.weight + self.b @ self.a * 0.5, self.base.bias)


class Cosine(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.classes = nn.Linear(6, 8), nn.Parameter(torch.randn(5, 8))

    def forward(self, x):
        return 10 * F.linear(F.normalize(self.fc(x)), F.normalize(self.classes))


class Maxout(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(4, 12), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.fc(x).view(-1, 4, 3).max(-1)[0])


class Conditional(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)

    def forward(self, x):
        x = self.fc(x)
        return torch.where(x > 0, x, 0.1 * x)


class Recurrent(nn.Module):
    """One layer, three times."""

    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        for _ in range(3):
            x = F.relu(self.fc(x))
        return self.out(x)


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(3, 7, 8)), nn.Parameter(torch.randn(3, 1, 8))
        self.w2 = nn.Parameter(torch.randn(3, 8, 1))

    def forward(self, x):
        hidden = torch.relu(torch.matmul(x, self.w1) + self.b1)
        return torch.bmm(hidden, self.w2).squeeze(-1).t().mean(-1)


class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.k = nn.Parameter(torch.randn(8, 7)), nn.Parameter(torch.randn(4, 2, 5))

    def forward(self, x):
        hidden = torch.einsum("bi,oi->bo", x, self.w).reshape(-1, 4, 2)
        return torch.einsum("bkd,kde->bke", hidden, self.k).flatten(1)


class WritesToPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 6)

    def forward(self, x):
        y = self.fc(x)
        y[:, :3] = torch.sigmoid(y[:, :3])
        return y


class Mixer(nn.Module):
    """Tokens and channels of one row, mixed in turn."""

    def __init__(self):
        super().__init__()
        self.norm, self.tokens, self.channels = nn.LayerNorm(5), nn.Linear(3, 3), nn.Linear(5, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + F.gelu(self.channels(x))).mean(1))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(24, 4)

    def forward(self, x):
        return F.log_softmax(self.fc(x.permute(0, 2, 3, 1).reshape(x.size(0), -1)), dim=1)


class Unrolled(nn.Module):
    """What seldom operators make of a row."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        a, b, c = self.fc(x).split([1, 2, 3], dim=-1)
        parts = [
            a.expand(-1, 3),
            torch.stack([b[:, 1], b[:, 0], a[:, 0]], 1),
            c.flip(-1),
            torch.roll(c, 1, -1),
        ]
        x = torch.addcmul(parts[0], parts[1], parts[2], value=0.5) + torch.lerp(parts[3], c, 0.25)
        x = torch.maximum(x, c).unsqueeze(1).repeat(1, 2, 1).flatten(1)
        x = x[:, [0, 3, 5]] * torch.logsumexp(c, -1, keepdim=True)
        return torch.cat([x, torch.ones(x.shape[0], 1, dtype=x.dtype), x.prod(-1, keepdim=True)], -1)


# (module, arguments of from_torch, summary; None where it is long)
IDIOMS = [
    (Plain, {}, "20-16-16-3 relu"),
    (PreNormTower, {}, "10 -> 8 -> 3 x [ln, 12 gelu, 8, +] -> ln -> 5"),
    (TabularResNet, {}, "9 -> 6 -> 2 x [12 relu, 6, +] -> affine -> relu -> 1"),
    (ActorCritic, {}, "8 -> 16 tanh => pi 4 softmax, v 1"),
    (
        GaussianPolicy,
        {},
        "11 -> 16 relu -> 6 => mean: [0:3] -> tanh, scale: [3:6] -> exp(clip(x, -5, 2))",
    ),
    (Nerf, {}, "7 -> 16 relu -> 16 relu -> concat input -> 16 relu -> 3 sigmoid | 1 softplus -> concat"),
    (PositionalEncoding, {"in_features": 3}, "3 -> 12 sin | cos -> concat input -> 2"),
    (Highway, {}, "6 -> 6 sigmoid | 6 relu -> * | 1 - x -> * -> +"),
    (DenseNet, {}, "4 -> 2 x [3 elu(x, 0.5), concat input] -> 2"),
    (Siren, {}, "2-8-1 sin(x * 30)"),
    (Llama, {}, "6 -> rms -> 9 gated silu -> 6 -> +"),
    (ChunkedGate, {}, "6-9-6 gated gelu"),
    (Bilinear, {}, "6-9 gated"),
    (Gpt2, {}, "6-12-6 gelu_tanh"),
    (HandWritten, {}, "4 -> 8 -> ln -> gelu"),
    (Lora, {}, "6-8"),
    (Cosine, {}, "6 -> 8 -> l2 -> 5"),
    (Maxout, {}, "4 -> 12 -> [0:8] | [4:12] -> max -> [0:4] | [4:8] -> max -> 2"),
    (Conditional, {}, "4-8 leaky_relu(x, 0.1)"),
    (Recurrent, {}, "4-4-4-4-2 relu"),
    (Ensemble, {}, None),
    (Einsum, {}, None),
    (WritesToPart, {}, "3 -> 6 -> [0:3] -> sigmoid | [3:6] -> concat"),
    (Mixer, {"example": torch.zeros(1, 3, 5)}, None),
    (Image, {"example": torch.zeros(2, 2, 3, 4)}, "24-4 log_softmax"),
    (Unrolled, {}, None),
]
