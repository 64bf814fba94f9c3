# SPDX-License-Identifier: Apache-2.0
"""Activation functions that people write themselves, and the less usual ones of torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.models.zoo.entry import model


def between_two_linears(activation):
    return nn.Sequential(nn.Linear(5, 12), activation, nn.Linear(12, 3))


class Function(nn.Module):
    """An activation without a state, as a module of its own."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


FUNCTIONS = {
    "swish_module": lambda x: x * torch.sigmoid(x),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "new_gelu": lambda x: (
        0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    ),
    "gelu_by_erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "squared_relu": lambda x: torch.square(F.relu(x)),
    "mish_by_hand": lambda x: x * torch.tanh(F.softplus(x)),
    "scaled_tanh": lambda x: 1.7159 * torch.tanh(2 / 3 * x),
    "shifted_softplus": lambda x: F.softplus(x) - math.log(2.0),
    "gaussian": lambda x: torch.exp(-(x**2) / 2),
    "symmetric_log": lambda x: torch.sign(x) * torch.log1p(torch.abs(x)),  # symlog of DreamerV3
    "telu": lambda x: x * torch.tanh(torch.exp(x)),
    "where_leaky": lambda x: torch.where(x > 0, x, 0.1 * x),
}
for _name, _function in FUNCTIONS.items():
    model(5, name=_name)(lambda function=_function: between_two_linears(Function(function)))


@model(5)
def swish_with_learned_beta():
    class Swish(nn.Module):
        def __init__(self):
            super().__init__()
            self.beta = nn.Parameter(torch.tensor(1.3))

        def forward(self, x):
            return x * torch.sigmoid(self.beta * x)

    return between_two_linears(Swish())


@model(5)
def snake():
    class Snake(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.rand(12) + 0.5)

        def forward(self, x):
            return x + torch.sin(self.a * x) ** 2 / self.a

    return between_two_linears(Snake())


def fused_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421356237))


@model(5)
def scripted_function():
    function = torch.jit.script(fused_gelu)  # as a decorator, most often

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 12), nn.Linear(12, 3)

        def forward(self, x):
            return self.b(function(self.a(x)))

    return Net()


@model(5)
def prelu_per_feature():
    return between_two_linears(nn.PReLU(12, init=0.1))


@model(5)
def unusual_activations_of_torch():
    parts = [
        nn.CELU(0.5),
        nn.Hardtanh(-2, 1),
        nn.Hardsigmoid(),
        nn.Softsign(),
        nn.Softplus(beta=2, threshold=10),
        nn.LogSigmoid(),
        nn.Tanhshrink(),
        nn.Softshrink(0.3),
        nn.RReLU(),
        nn.Softmin(dim=-1),
    ]
    return nn.Sequential(nn.Linear(5, 12), *(part for each in parts for part in (each, nn.Linear(12, 12))))


# They jump: next to the jump, rounding decides.
@model(5, refused="a function with steps", gap=True)
def activations_that_jump():
    return nn.Sequential(nn.Linear(5, 12), nn.Hardshrink(0.3), nn.Linear(12, 12), nn.Threshold(0.1, -0.5))


@model(3)
class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 16), nn.Linear(16, 16)])
        self.last = nn.Linear(16, 1)
        self.omega = 30.0

    def forward(self, x):
        for layer in self.layers:
            x = torch.sin(self.omega * layer(x))
        return self.last(x)


@model(3)
class FourierFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("B", torch.randn(8, 3))
        self.net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3), nn.Sigmoid())

    def forward(self, x):
        projected = 2 * math.pi * x @ self.B.T
        return self.net(torch.cat([torch.sin(projected), torch.cos(projected)], dim=-1))


@model(8)
class TemperatureSoftmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 5)
        self.temperature = nn.Parameter(torch.ones(1) * 1.5)

    def forward(self, x):
        return F.softmax(self.fc(x) / self.temperature, dim=-1)


@model(8)
class SoftmaxByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        e = torch.exp(self.fc(x))
        return e / e.sum(dim=1, keepdim=True)
