# SPDX-License-Identifier: Apache-2.0
"""`fused_mlp.fuse_mlps`: the MLPs inside a model are replaced, and its outputs stay as they are."""

import copy

import torch
from torch import nn

import fused_mlp
from fused_mlp.kernels import FusedMLP


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = FeedForward(width)

    def forward(self, x, mask=None):
        return self.mlp(x + self.attention(x, x, x, need_weights=False)[0])


class Model(nn.Module):
    """Two blocks, the second of which runs twice, and a head that is one product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.blocks.append(self.blocks[1])
        self.folded = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.folded(x[:, 0]))


def test_the_largest_mlps_are_replaced_and_the_rest_is_named():
    model = Model().eval()
    twin = copy.deepcopy(model)
    fusion = fused_mlp.fuse_mlps(model)
    assert fusion.model is model
    assert list(fusion.replaced) == ["blocks.0.mlp", "blocks.1.mlp"]
    assert fusion.replaced["blocks.0.mlp"] == "8 -> ln -> 24 relu -> 8 -> +"
    assert isinstance(model.blocks[0].mlp, FusedMLP)
    assert model.blocks[2].mlp is model.blocks[1].mlp
    assert fusion.kept["folded"] == "it takes (rows, features) only"
    assert "replaced 2 MLPs" in str(fusion)
    assert set(model.state_dict()) == set(twin.state_dict())
    x = torch.randn(4, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(model(x), twin(x), rtol=1e-5, atol=1e-5)
    assert fused_mlp.fuse_mlps(model).replaced == {}  # nothing is left to do


def test_a_model_that_is_an_mlp_is_replaced_itself():
    fusion = fused_mlp.fuse_mlps(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    assert isinstance(fusion.model, FusedMLP)
    assert "the model: 4-8-2 relu" in str(fusion)


def test_layers_of_a_module_that_stays_are_named():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    fusion = fused_mlp.fuse_mlps(model)
    assert fusion.replaced == {}
    assert fusion.kept["layers.0"].endswith("; so do its own linear1, linear2")
    assert "layers.0.self_attn" in fusion.kept


class Pairs(nn.Module):
    """Its answer to (a, b, features) has (a, b) in front, but is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)
        self.factors = nn.Parameter(torch.randn(8, 4))

    def forward(self, x):
        squared = (x @ self.factors).pow(2) - x.pow(2) @ self.factors.pow(2)
        return (self.linear(x) + squared.sum(1, keepdim=True)).squeeze()


def test_a_module_that_computes_more_dimensions_otherwise_does_not_stop_the_others():
    model = nn.ModuleDict({"first": FeedForward(8), "pairs": Pairs(), "last": FeedForward(8)})
    fusion = fused_mlp.fuse_mlps(model.eval())
    assert set(fusion.replaced) == {"first", "last"}
    assert "pairs" in fusion.kept


def test_modules_of_the_same_shapes_are_judged_one_by_one():
    def block(function: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), function, nn.Linear(16, 8))

    fusion = fused_mlp.fuse_mlps(nn.ModuleDict({"a": block(nn.Hardshrink()), "b": block(nn.ReLU())}).eval())
    assert set(fusion.replaced) == {"b"}
