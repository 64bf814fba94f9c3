# SPDX-License-Identifier: Apache-2.0
"""`kernels.FusedMLP` of modules whose forward is code: norms, residuals, skips, several outputs."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from fused_mlp.kernels import FusedMLP
from fused_mlp.kernels.nn.operator import mlp as operator


class ResidualBlock(nn.Module):
    """Pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(12)
        self.fc1 = nn.Linear(12, 30)
        self.fc2 = nn.Linear(30, 12)

    def forward(self, x):
        return x + self.fc2(functional.silu(self.fc1(self.norm(x))))


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.trunk = nn.Linear(12, 16)
        self.norm = nn.RMSNorm(28)
        self.pi = nn.Linear(28, 4)
        self.v = nn.Linear(28, 1)

    def forward(self, x):
        hidden = self.norm(torch.cat([torch.tanh(self.trunk(x)), x], -1))
        return functional.log_softmax(self.pi(hidden), -1), self.v(hidden).squeeze(-1)


MODULES = {"residual": ResidualBlock, "actor_critic": ActorCritic}


@pytest.fixture(params=MODULES)
def module(request) -> nn.Module:
    return MODULES[request.param]()


def heads(result):
    return result if isinstance(result, tuple) else (result,)


def assert_close(actual, expected):
    # Sums of up to 30 products in another order, two or three times in a row.
    torch.testing.assert_close(heads(actual), heads(expected), rtol=1e-5, atol=1e-5)


def total(result):
    return sum(head.square().sum() for head in heads(result))


def test_result_is_that_of_the_module_whatever_the_leading_dimensions(module):
    fused = FusedMLP.from_torch(module)
    x = torch.randn(6, 12)
    with torch.no_grad():
        for shape in ((6, 12), (2, 3, 12), (12,), (0, 12)):
            rows = x.reshape(-1)[: torch.Size(shape).numel()].view(shape)
            assert_close(fused(rows), module(rows))
    assert not fused.rows_only
    assert fused.describe().backend == "cpu"
    assert set(fused.state_dict()) == set(module.state_dict())


def test_weights_that_change_are_packed_again(module):
    fused = FusedMLP.from_torch(module)
    x = torch.randn(3, 12)
    with torch.no_grad():
        fused(x)
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))
        assert_close(fused(x), module(x))


def test_gradients_are_those_of_the_module(module):
    twin = copy.deepcopy(module)
    fused = FusedMLP.from_torch(module)
    x, y = (torch.randn(5, 12, generator=torch.Generator().manual_seed(3)).requires_grad_() for _ in "ab")
    total(fused(x)).backward()
    total(twin(y)).backward()
    assert_close(x.grad, y.grad)
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(fused.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-4)


def test_the_operator_has_first_and_second_derivatives(module):
    fused = FusedMLP.from_torch(module.double())
    x = torch.randn(2, 12, dtype=torch.float64, requires_grad=True)
    frozen = [weight.detach() for weight in fused._weights()]

    def run(x):
        return operator(x, frozen, fused._spec, "auto", 0)

    assert torch.autograd.gradcheck(run, (x,))
    assert torch.autograd.gradgradcheck(run, (x,), fast_mode=True)  # a random direction of all of them


def test_compiles_and_exports_as_one_operator(module):
    fused = FusedMLP.from_torch(module).eval()
    x = torch.randn(5, 12, requires_grad=True)
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager", dynamic=True)
    result = compiled(x)
    assert_close(result, module(x))
    (actual,), (expected,) = (torch.autograd.grad(total(r), x) for r in (result, module(x)))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    program = torch.export.export(
        fused, (x.detach(),), dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=64)},)
    )
    assert sum("fused_mlp.mlp" in str(node.target) for node in program.graph.nodes) == 1
    with torch.no_grad():
        assert_close(program.module()(x[:3]), module(x[:3]))


def test_a_module_for_rows_only_is_not_run_on_more_dimensions():
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 4)

        def forward(self, x):
            return torch.cat([self.fc(x), x], 1)  # of (2, 3, features), other things than the features

    fused = FusedMLP.from_torch(Rows())
    assert fused.rows_only
    assert fused(torch.randn(2, 3)).shape == (2, 7)
    with pytest.raises(RuntimeError, match=r"expected \(rows, 3\), got \[2, 3, 3\]"):
        fused(torch.randn(2, 3, 3))
