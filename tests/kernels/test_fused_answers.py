# SPDX-License-Identifier: Apache-2.0
"""`kernels.FusedMLP` answers in the form in which the module does."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import fused_mlp
from fused_mlp.kernels import FusedMLP


class Pair(NamedTuple):
    logits: Tensor
    value: Tensor


@dataclass
class Answer:
    logits: Tensor
    value: Tensor
    loss: Tensor | None = None


FORMS = {
    "dict": lambda p, v: {"logits": p, "value": v},
    "ordered": lambda p, v: OrderedDict(logits=p, value=v),
    "tuple": lambda p, v: (p, v),
    "list": lambda p, v: [p, v],
    "named": Pair,
    "dataclass": Answer,
    "nested": lambda p, v: {"policy": (p, {"more": p * 2}), "value": v},
    "one of a tuple": lambda p, v: (p,),
    "one of a dict": lambda p, v: {"logits": p},
}


class ActorCritic(nn.Module):
    def __init__(self, form) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.trunk = nn.Linear(12, 16)
        self.pi = nn.Linear(16, 4)
        self.v = nn.Linear(16, 1)
        self.form = form

    def forward(self, x):
        hidden = torch.tanh(self.trunk(x))
        return FORMS[self.form](self.pi(hidden), self.v(hidden).squeeze(-1))


def plain(answer):
    """Dataclasses, which assert_close does not compare, as dicts."""
    return vars(answer) | {"loss": torch.zeros(1)} if isinstance(answer, Answer) else answer


@pytest.mark.parametrize("form", FORMS)
def test_it_answers_as_the_module_does(form):
    module = ActorCritic(form)
    fused = FusedMLP.from_torch(module)
    with torch.no_grad():
        for shape in ((6, 12), (2, 3, 12), (0, 12)):
            x = torch.randn(shape)
            expected, actual = module(x), fused(x)
            assert type(actual) is type(expected)
            torch.testing.assert_close(plain(actual), plain(expected), rtol=1e-5, atol=1e-5)


def test_a_dict_is_compiled_exported_and_differentiated():
    module = ActorCritic("dict")
    fused = FusedMLP.from_torch(module)
    x = torch.randn(5, 12, requires_grad=True)
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")(x)
    exported = torch.export.export(fused, (x.detach(),)).module()(x)
    for result in (fused(x), compiled, exported):
        torch.testing.assert_close(result, module(x), rtol=1e-5, atol=1e-5)
    actual, expected = (torch.autograd.grad(r["value"].sum(), x) for r in (fused(x), module(x)))
    torch.testing.assert_close(actual, expected)


def test_an_mlp_that_answers_a_dict_is_replaced():
    fusion = fused_mlp.fuse_mlps(ActorCritic("dict"))
    assert list(fusion.replaced) == [""]
    assert list(fusion.model(torch.randn(2, 12))) == ["logits", "value"]
