# SPDX-License-Identifier: Apache-2.0
"""A FusedMLP of a module with several inputs: called as the module is, trained as the module is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fused_mlp.kernels.nn import fused_module
from fused_mlp.kernels.nn.fused_module import FusedMLP
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.importers.from_torch import Reading
from fused_mlp.models.program.inputs import Field, Input, InputError
from fused_mlp.models.program.steps import Bag, Concat, Embedding, Linear, Slice


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(50, 6)
        self.seen = nn.EmbeddingBag(50, 6, mode="sum")
        self.out = nn.Linear(15, 1)

    def forward(self, item, seen, x):
        return self.out(torch.cat([self.item(item), self.seen(seen), x], 1))


@pytest.fixture
def pair(monkeypatch):
    torch.manual_seed(0)
    module = Ranker()
    ids = Field(kind="id", size=50)
    spec = MlpSpec(
        in_features=8,
        inputs=(
            Input(name="item", dtype="int64", fields=(ids,)),
            Input(name="seen", dtype="int64", shape=(4,), fields=(ids,)),
            Input(name="x", shape=(3,)),
        ),
        steps=(
            Slice(name="item_id", input="input", start=0, stop=1),
            Slice(name="seen_ids", input="input", start=1, stop=5),
            Slice(name="x", input="input", start=5, stop=8),
            Embedding(name="item", input="item_id", size=50, features=6),
            Bag(name="seen", input="seen_ids", size=50, features=6),
            Concat(name="all", inputs=("item", "seen", "x")),
            Linear(name="out", input="all", out_features=1),
        ),
    )
    mlp = Mlp(spec, {name: module.state_dict()[name] for name, _ in spec.shapes()})
    names = {name: name for name, _ in spec.shapes()}
    reading = Reading(mlp, mlp, names, frozenset(), module, torch.zeros(2, 1))
    monkeypatch.setattr(fused_module, "read_module", lambda *_, **__: reading)
    return module, FusedMLP(module)


def arguments():
    torch.manual_seed(1)
    return torch.randint(0, 50, (9,)), torch.randint(0, 50, (9, 4)), torch.randn(9, 3)


def test_it_is_called_as_the_module_is(pair):
    module, fused = pair
    item, seen, x = arguments()
    with torch.no_grad():
        expected = module(item, seen, x)
        for made in (
            fused(item, seen, x),
            fused(item, x=x, seen=seen),
            fused({"x": x, "seen": seen, "item": item}),
            fused(torch.from_numpy(fused.spec.pack([item.numpy(), seen.numpy(), x.numpy()]))),
        ):
            torch.testing.assert_close(made, expected)


def test_autograd_reaches_floats_and_tables(pair):
    module, fused = pair
    item, seen, x = arguments()
    grads = []
    for each in (module, fused):
        module.zero_grad()
        given = x.clone().requires_grad_()
        each(item, seen, given).square().sum().backward()
        grads.append([given.grad, *(parameter.grad.clone() for parameter in module.parameters())])
    for expected, made in zip(*grads, strict=True):
        torch.testing.assert_close(made, expected)


def test_wrong_inputs_are_refused(pair):
    _, fused = pair
    item, seen, x = arguments()
    with pytest.raises(InputError, match="input 'item', row 0: expected an id from 0 to 49, got 50"):
        fused(torch.full((9,), 50), seen, x)
    with pytest.raises(InputError, match="input 'x' is missing"):
        fused({"item": item, "seen": seen})
    with pytest.raises(InputError, match="inputs of different rows: 9 of 'item', 9 of 'seen', 8 of 'x'"):
        fused(item, seen, x[:8])


def test_columns_of_floats_that_the_module_casts_are_ids():
    class OfOneMatrix(Ranker):
        def forward(self, x):
            return super().forward(x[:, 0].long(), x[:, 1:5].long(), x[:, 5:])

    item, seen, x = arguments()
    rows = torch.cat([item[:, None], seen, x], 1)
    module = OfOneMatrix().eval()
    with torch.no_grad():
        torch.testing.assert_close(FusedMLP.from_torch(module, example=rows)(rows), module(rows))
