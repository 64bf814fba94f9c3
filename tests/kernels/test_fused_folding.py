# SPDX-License-Identifier: Apache-2.0
"""`kernels.FusedMLP` of modules whose weights the program has in another form: folded, transposed, or made by it."""

import copy
import pickle

import pytest
import torch
from torch import nn

from fused_mlp.kernels import FusedMLP


class Dueling(nn.Module):
    """Its sums and broadcasts are matrices of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.value = nn.Linear(16, 1)
        self.advantage = nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.body(x))
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(-1, keepdim=True)


class OneBias(nn.Module):
    """Of the two halves of a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 8, bias=False)
        self.up = nn.Linear(6, 8)

    def forward(self, x):
        return nn.functional.silu(self.gate(x)) * self.up(x)


class Conv1D(nn.Module):
    """As in GPT-2: (in, out)."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, out) / 3)
        self.bias = nn.Parameter(torch.randn(out))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class Pixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc((x - 128) / 255)


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.fc(x) / self.temperature


class Standardised(nn.Module):
    """Statistics as buffers, of the shape (1, features), where nothing can take them in."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(1, 6))
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(torch.tanh(x * self.scale))


class Numbers(nn.Module):
    """Vectors that are written into forward, where nothing can take them in."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        x = torch.sin(torch.tanh(x) * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=x.dtype))
        return torch.maximum(self.fc(x), torch.linspace(-1, 1, 4, dtype=x.dtype))


class Swapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x):
        return torch.softmax(self.fc(x)[:, [4, 5, 6, 7, 3, 2, 1, 0]], -1)


class Rezero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.alpha = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x + self.alpha * torch.tanh(self.fc(x))


class Learned(nn.Module):
    """A condition on a number that is trained: it stays a value of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.slope = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        x = self.fc(x)
        return torch.where(x > 0, x, x * self.slope)


class Scaled(nn.Module):
    """A vector that is computed from a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("variance", torch.rand(6) + 1)
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(torch.tanh(x / self.variance.sqrt()))


def batch_norm() -> nn.Module:
    norm = nn.BatchNorm1d(8)
    norm.running_mean.uniform_()
    norm.running_var.uniform_(0.5, 2.0)
    return nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), nn.Linear(8, 4))


KEPT = {
    "condition": Learned,
    "dueling": Dueling,
    "one bias": OneBias,
    "transposed": lambda: nn.Sequential(Conv1D(6, 6), nn.GELU(), Conv1D(6, 4)),
    "buffer": Standardised,
    "numbers in forward": Numbers,
    "another order": Swapped,
    "a number that is trained": Rezero,
    "prelu": lambda: nn.Sequential(nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 4)),
    "prelu per feature": lambda: nn.Sequential(nn.Linear(6, 8), nn.PReLU(8), nn.Linear(8, 4)),
}
FOLDED = {
    "pixels": (Pixels, {"fc.weight", "fc.bias"}),
    "batch norm": (
        batch_norm,
        {
            "0.weight",
            "0.bias",
            "1.weight",
            "1.bias",
            "1.running_mean",
            "1.running_var",
            "1.num_batches_tracked",
        },
    ),
    "temperature": (Temperature, {"fc.weight", "fc.bias", "temperature"}),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU()),
        {"0.parametrizations.weight.original0", "0.parametrizations.weight.original1"},
    ),
}


def seeded(make) -> nn.Module:
    torch.manual_seed(0)
    return make().eval()


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", KEPT)
def test_parameters_stay_the_modules_own(name):
    module = seeded(KEPT[name])
    twin = copy.deepcopy(module)
    fused = FusedMLP.from_torch(module)
    assert fused.folded == ()
    assert set(fused.state_dict()) == set(module.state_dict())
    assert [id(p) for p in module.parameters()] == [
        id(fused.get_parameter(n)) for n, _ in module.named_parameters()
    ]
    assert len(list(fused.parameters())) == len(list(module.parameters()))
    x = torch.randn(5, 6)
    fused(x).square().sum().backward()
    twin(x).square().sum().backward()
    for key, parameter in twin.named_parameters():
        torch.testing.assert_close(fused.get_parameter(key).grad, parameter.grad, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert_close(fused(x), module(x))
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))
        assert_close(fused(x), module(x))
        assert_close(fused.to(torch.float64)(x.double()), module.to(torch.float64)(x.double()))


@pytest.mark.parametrize("name", KEPT)
def test_a_step_of_an_optimizer_and_a_state_dict_are_those_of_the_module(name):
    module = seeded(KEPT[name])
    twin, before = copy.deepcopy(module), copy.deepcopy(module.state_dict())
    fused = FusedMLP.from_torch(module)
    x = torch.randn(5, 6)
    for trained in (fused, twin):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        trained(x).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        assert_close(fused(x), twin(x))
        fused.load_state_dict(before)
        twin.load_state_dict(before)
        assert_close(fused(x), twin(x))


def test_what_is_computed_from_buffers_is_not_trained():
    module = seeded(Scaled)
    fused = FusedMLP.from_torch(module)
    assert [name for name, _ in fused.named_parameters()] == [name for name, _ in module.named_parameters()]
    assert fused.folded == ("variance",)
    x = torch.randn(5, 6)
    assert_close(fused(x), module(x))


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_folded_is_a_parameter_of_its_own(name):
    make, entries = FOLDED[name]
    module = seeded(make)
    fused = FusedMLP.from_torch(module)
    assert set(fused.folded) == entries
    assert f"folded: {fused.folded[0]}" in repr(fused)
    x = torch.randn(5, 6)
    with torch.no_grad():
        assert_close(fused(x), module(x))
        assert_close(pickle.loads(pickle.dumps(fused))(x), module(x))
    kept = set(fused.state_dict()) & set(module.state_dict())
    assert kept == set(module.state_dict()) - entries
    with pytest.raises(RuntimeError, match="Error"):  # never silently as something else
        fused.load_state_dict(module.state_dict())
    other = FusedMLP.from_torch(seeded(make))
    before = fused(x).square().sum()
    before.backward()
    assert all(parameter.grad is not None for parameter in fused.parameters())
    with torch.no_grad():
        for parameter in fused.parameters():
            parameter.sub_(1e-4 * parameter.grad)
        assert fused(x).square().sum() < before
        other.load_state_dict(fused.state_dict())
        assert_close(other(x), fused(x))


@pytest.mark.parametrize(
    "make",
    [Dueling, batch_norm, KEPT["transposed"], KEPT["prelu"]],
    ids=["dueling", "batch norm", "transposed", "prelu"],
)
def test_they_compile_and_export_as_one_operator(make):
    module = seeded(make)
    fused = FusedMLP.from_torch(module)
    x = torch.randn(5, 6, requires_grad=True)
    assert_close(torch.compile(fused, fullgraph=True, backend="aot_eager")(x), module(x))
    program = torch.export.export(fused, (x.detach(),))
    assert sum("fused_mlp.mlp" in str(node.target) for node in program.graph.nodes) == 1
    assert_close(program.module()(x), module(x))


def test_a_float64_module_is_folded_in_float64():
    module = seeded(batch_norm).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    torch.testing.assert_close(FusedMLP.from_torch(module)(x), module(x), rtol=1e-12, atol=1e-12)


def test_batch_statistics_are_not_pretended():
    fused = FusedMLP.from_torch(seeded(batch_norm)).train()
    with pytest.raises(RuntimeError, match="no statistics of a batch: call eval"):
        fused(torch.randn(5, 6))
