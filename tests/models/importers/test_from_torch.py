# SPDX-License-Identifier: Apache-2.0
"""from_torch: what is read, what is folded, and what is refused by the user's own line."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn

from fused_mlp import models
from fused_mlp.models import Mlp, ModelLoadError
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.spec import Linear, Softmax
from tests.models.importers.idioms import IDIOMS, ActorCritic, Llama, Plain, PreNormTower, Recurrent


def assert_same_function(module: nn.Module, mlp: Mlp, x: torch.Tensor) -> None:
    """In float64, where only a wrong formula can differ; folding rounds the weights once, to float32."""
    with torch.inference_mode():
        expected = module.eval().double()(x.double())
    if isinstance(expected, torch.Tensor):
        expected = (expected,)
    else:
        expected = tuple((expected if isinstance(expected, dict) else vars(expected)).values())
    flat = torch.cat([each.reshape(len(x), -1) for each in expected if each is not None], 1)
    got = evaluate(mlp, x.flatten(1).double().numpy())
    np.testing.assert_allclose(got, flat.numpy(), rtol=1e-5, atol=2e-6)


def randomised(module: nn.Module) -> nn.Module:
    """With statistics and weights of norms that change something."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.LayerNorm):
            for tensor in (part.weight, part.bias, getattr(part, "running_mean", None)):
                if tensor is not None:
                    nn.init.normal_(tensor)
            if getattr(part, "running_var", None) is not None:
                nn.init.uniform_(part.running_var, 0.5, 2.0)
    return module


def batch_norm(features: int) -> nn.Module:
    return randomised(nn.BatchNorm1d(features, eps=1e-3))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(("make", "options", "summary"), IDIOMS, ids=[idiom[0].__name__ for idiom in IDIOMS])
def test_modules_are_taken_as_people_write_them(make, options, summary):
    module = randomised(make())
    mlp = models.from_torch(module, **options)
    if summary is not None:
        assert mlp.spec.summary() == summary
    example = options.get("example")
    shape = (mlp.spec.in_features,) if example is None else example.shape[1:]
    assert_same_function(module, mlp, torch.randn(7, *shape))


@pytest.mark.parametrize(
    ("layers", "summary"),
    [
        (lambda: [nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)], "4-5-2 tanh"),
        (lambda: [nn.Identity(), nn.Linear(4, 5), nn.Dropout(), nn.ReLU(), nn.AlphaDropout()], "4-5 relu"),
        (lambda: [nn.Linear(4, 5), batch_norm(5), nn.ReLU(), nn.Linear(5, 2), batch_norm(2)], "4-5-2 relu"),
        (lambda: [batch_norm(4), nn.Linear(4, 5, bias=False), nn.GELU(), nn.Linear(5, 2)], "4-5-2 gelu"),
        (lambda: [nn.Linear(4, 5), nn.ReLU(), batch_norm(5), batch_norm(5), nn.Linear(5, 2)], "4-5-2 relu"),
        (lambda: [nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5, affine=False), nn.ELU()], "4-5 elu"),
        (lambda: [nn.Linear(4, 5), nn.ReLU(), batch_norm(5), nn.ReLU()], "4 -> 5 relu -> affine -> relu"),
        (lambda: [nn.Linear(4, 5), nn.PReLU(init=0.5), nn.Linear(5, 2)], "4-5-2 leaky_relu(x, 0.5)"),
        (lambda: [nn.Linear(4, 5), nn.PReLU(5), nn.RMSNorm(5), nn.GroupNorm(1, 5)], None),
        (lambda: [nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU6()], "4-3 relu6"),
        (lambda: [nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), nn.Softmin(-1)], "4-3 softmax"),
        (lambda: [nn.Linear(4, 5), nn.ReLU(), nn.Tanh()], "4-5 tanh(relu(x))"),
        (lambda: [nn.Linear(4, 5), nn.Softmax(-1), nn.Linear(5, 2)], "4 -> 5 softmax -> 2"),
        (lambda: [nn.LayerNorm(4), nn.SiLU()], "4 -> ln -> silu"),
    ],
)
def test_layers_become_the_same_function(layers, summary):
    module = nn.Sequential(*layers())
    mlp = models.from_torch(module)
    if summary is not None:
        assert mlp.spec.summary() == summary
    assert_same_function(module, mlp, torch.randn(7, 4))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (nn.SELU(), "selu"),
        (nn.ELU(0.5), "elu(x, 0.5)"),
        (nn.CELU(0.7), "0.7 * elu(x / 0.7)"),
        (nn.Hardtanh(), "clip(x, -1, 1)"),
        (nn.Hardsigmoid(), "hardsigmoid"),
        (nn.Softsign(), "softsign"),
        (nn.Softplus(2, 5), "softplus(x, 2, 5)"),
        (nn.Threshold(0, 0), "relu"),
        (lambda x: x * torch.sigmoid(1.702 * x), "quick_gelu"),
        (lambda x: x / (1 + torch.exp(-x)), "silu"),
        (lambda x: torch.relu(x) ** 2, "relu(x) * relu(x)"),
        (lambda x: 1.7159 * torch.tanh(x * 2 / 3), "tanh(x * 2 / 3) * 1.7159"),
        (lambda x: torch.where(x > 0, x, torch.exp(x) - 1), "elu"),
        (lambda x: x * (x > 0), "relu"),
        (lambda x: torch.log(1 + x.abs().sqrt()), "log(sqrt(abs(x)) + 1)"),
        (lambda x: torch.log1p(x.abs()), "log1p(abs(x))"),
        (torch.expm1, "expm1"),
        (torch.sinh, "sinh"),
    ],
)
def test_arithmetic_of_one_value_is_one_function(function, text):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 5)

        def forward(self, x):
            return function(self.fc(x))

    module = Module()
    mlp = models.from_torch(module)
    assert [getattr(step, "function", "") for step in mlp.spec.steps] == ["", text]
    assert_same_function(module, mlp, 5 * torch.randn(9, 4))


@pytest.mark.parametrize(
    "part",
    [
        lambda x: x.narrow(1, 1, 2),
        lambda x: x.narrow(-1, -3, 2),
        lambda x: x.narrow(1, -2, 2),
        lambda x: x.narrow(0, 0, x.shape[0])[:, 2:],
    ],
    ids=["from the start", "from the end", "up to the end", "of all rows"],
)
def test_narrow_takes_a_part_of_the_features(part):
    module = with_forward(lambda self, x: part(self.fc(x)))()
    assert_same_function(module, models.from_torch(module), torch.randn(5, 4))


def test_steps_and_tensors_have_the_names_of_the_module():
    mlp = models.from_torch(PreNormTower())
    state = PreNormTower().state_dict()
    assert set(mlp.tensors()) == set(state)
    assert "blocks.2.fc1" in [step.name for step in mlp.spec.steps]


def test_a_module_that_is_called_twice_has_its_weights_once():
    mlp = models.from_torch(Recurrent())
    assert [step.prefix for step in mlp.spec.steps if step.op == "linear"] == ["fc", "fc", "fc", "out"]
    assert mlp.spec.parameters == 4 * 4 + 4 + 4 * 2 + 2


def test_outputs_keep_their_names_and_are_known_to_be_squeezed():
    outputs = models.from_torch(ActorCritic()).spec.outputs
    assert [(output.name, output.squeeze) for output in outputs] == [("pi", False), ("v", True)]


def test_input_of_several_axes_keeps_its_shape():
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    assert models.from_torch(module).spec.input_shape is None
    mlp = models.from_torch(module, torch.zeros(1, 3, 4))
    assert (mlp.spec.in_features, mlp.spec.input_shape) == (12, (3, 4))


def test_a_module_in_training_is_read_as_in_eval_mode_and_left_as_it_was():
    module = nn.Sequential(nn.Linear(6, 6), batch_norm(6), nn.Dropout(), Llama()).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    mlp = models.from_torch(module)
    assert all(part.training for part in module.modules())
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert_same_function(module, mlp, torch.randn(3, 6))


def test_hooks_and_wrappers_are_part_of_what_is_read():
    module = nn.Linear(3, 2)
    module.register_forward_hook(lambda module, args, output: output * 2)
    assert_same_function(module, models.from_torch(module), torch.randn(3, 3))
    assert models.from_torch(nn.DataParallel(Plain())).spec.summary() == "20-16-16-3 relu"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes_we_serve_are_kept(dtype):
    module = nn.Linear(3, 2).to(getattr(torch, dtype))
    mlp = models.from_torch(module)
    assert mlp.spec.dtype == dtype
    assert np.array_equal(
        mlp.tensors()["linear.weight"].astype(np.float64), module.weight.detach().double().numpy()
    )


def test_nothing_is_rounded_without_being_asked():
    with pytest.raises(ModelLoadError, match="float64, which is not served; round them with dtype='float32'"):
        models.from_torch(nn.Linear(3, 2).double())
    assert models.from_torch(nn.Linear(3, 2).double(), dtype="float32").spec.dtype == "float32"
    mixed = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2).half())
    with pytest.raises(ModelLoadError, match=r"float32 \(layer 0: Linear\), float16 \(layer 2: Linear\)"):
        models.from_torch(mixed)
    assert models.from_torch(mixed, dtype="bfloat16").spec.dtype == "bfloat16"
    with pytest.raises(ModelLoadError, match="dtype='int8': expected float32, float16 or bfloat16"):
        models.from_torch(nn.Linear(3, 2), dtype="int8")


def test_a_module_that_casts_to_float32_is_read_in_float32():
    class Casts(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            return torch.sigmoid(self.fc(x.float()))

    assert models.from_torch(Casts()).spec.summary() == "4-3 sigmoid"


def test_a_module_that_rounds_to_float32_inside_is_given_the_tolerance_of_float32():
    """Large numbers cancel out: 1000 times the answer, so that their rounding is 3e-5 of it."""

    class Cancels(nn.Module):
        def __init__(self, dtype):
            super().__init__()
            torch.manual_seed(0)
            self.fc = nn.Linear(4, 3)
            self.dtype = dtype

        def forward(self, x):
            y = self.fc(x)
            large = (1000 * y).to(self.dtype)
            return (large + y.to(self.dtype)) - large

    assert models.from_torch(Cancels(torch.float64)).spec.out_features == 3
    assert models.from_torch(Cancels(torch.float32)).spec.out_features == 3


def with_forward(forward, *, width=4):
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(width, 8)

    Written.forward = forward
    return Written


def with_weight(value: float) -> nn.Module:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight[1, 1] = value
    return module


def branch(self, x):
    if x.sum() > 0:
        return self.fc(x)
    return x


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)

    def forward(self, x):
        x = self.fc(x)
        weights = torch.softmax(x @ x.T, -1)
        return weights @ x


def quantised() -> nn.Module:
    class Linear(nn.Linear):
        __module__ = "torch.ao.nn.quantized.dynamic.modules.linear"

    return nn.Sequential(Linear(3, 2))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Conv1d(1, 1, 1)), r"^layer 1: Conv1d.*: a convolution is no step"),
        (lambda: nn.Conv2d(1, 1, 1), "^Conv2d: a convolution is no step"),
        (lambda: nn.Sequential(nn.Embedding(3, 2)), r"^Sequential looks up rows of tables \(0\): give an example"),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), Attention()),
            r"^1: matmul \(test_from_torch.py:\d+, `weights = .*a product of two computed .* the rows \(attention",
        ),
        (with_forward(branch), r"if x.sum\(\) > 0.*depends on the values of the rows"),
        (with_forward(lambda self, x: self.fc(x - x.mean(0))), "Written: mean.*it goes over the rows"),
        (with_forward(lambda self, x: self.fc(x).softmax(0)), "it goes over the rows"),
        (with_forward(lambda self, x: self.fc(x) / x.shape[0]), "the number of rows"),
        (with_forward(lambda self, x: self.fc(x).flatten()[None]), r"shape \(1, 8 \* rows\)"),
        (with_forward(lambda self, x: self.fc(x)[:2]), "rows"),
        (with_forward(lambda self, x: F.dropout(self.fc(x))), "drops values in eval mode too"),
        (with_forward(lambda self, x: self.fc(x) + torch.rand_like(self.fc(x))), "random numbers"),
        (with_forward(lambda self, x: torch.round(self.fc(x))), "a function with steps"),
        (with_forward(lambda self, x: self.fc(x).argsort(-1)), "answer the scores"),
        (with_forward(lambda self, x: self.fc(x).view(-1, 2, 4)), r"output 'output' has shape \(rows, 2, 4\)"),
        (with_forward(lambda self, x: "text"), "answers str: expected tensors"),
        (with_forward(lambda self, x: (self.fc(x), self.fc.bias)), "'output_1' does not depend on the input"),
        (with_forward(lambda self, x, y: self.fc(x) + y), r"forward takes 2 inputs \(x, y\)"),
        (
            with_forward(lambda self, x: self.fc(torch.cat([x[:, :2].sin(), x[:, :2].cos()], 1))),
            "takes parts of its input.*give in_features",
        ),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False)), "depends on the batch"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2)), r"could not be run on \(rows, 3\) inputs"),
        (lambda: nn.Sequential(nn.ReLU()), "no weights that tell the width of its rows: give in_features"),
        (nn.Sequential, "give in_features"),
        (lambda: nn.LazyLinear(3), "no weights yet"),
        (lambda: nn.Linear(3, 2, device="meta"), "not a plain dense tensor"),
        (lambda: nn.Linear(3, 2).to(torch.float8_e4m3fn), "float8_e4m3fn weights are not served"),
        (quantised, "layer 0: Linear is quantised"),
        (lambda: with_weight(torch.nan), "no finite numbers|NaN or infinite"),
    ],
)  # fmt: skip
def test_what_cannot_be_represented_is_refused_in_one_line(make, text):
    module = make()
    with pytest.raises(ModelLoadError, match=text) as caught:
        models.from_torch(module)
    assert "\n" not in str(caught.value)


def test_a_weight_too_large_for_the_dtype_is_refused():
    with pytest.raises(ModelLoadError, match="1 of 6 values are too large for float16"):
        models.from_torch(with_weight(1e6), dtype="float16")


def test_a_program_that_is_not_the_module_is_refused(monkeypatch):
    from fused_mlp.models.importers.torch import aten

    monkeypatch.setitem(aten.OPERATORS, "relu", aten.OPERATORS["silu"])
    with pytest.raises(ModelLoadError, match="does not compute what the model does"):
        models.from_torch(Plain())


def test_a_module_that_is_called_twice_for_the_same_value_is_computed_once():
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8))
            self.pi, self.v = nn.Linear(8, 3), nn.Linear(8, 1)

        def policy(self, x):
            return torch.softmax(self.pi(self.encoder(x)), -1)

        def forward(self, x):
            return self.policy(x), self.v(self.encoder(x)), self.policy(x).amax(-1)

    mlp = models.from_torch(Agent())  # which compares it with the module
    products = [step for step in mlp.spec.steps if isinstance(step, Linear)]
    assert [step.name for step in products] == ["encoder.0", "encoder.3", "pi", "v"]
    assert sum(isinstance(step, Softmax) for step in mlp.spec.steps) == 1
    other = models.from_torch(TwoInputsOfOneModule())  # of two values it is computed twice
    assert sum(isinstance(step, Linear) for step in other.spec.steps) == 3


class TwoInputsOfOneModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.last = nn.Linear(5, 5), nn.Linear(5, 1)

    def forward(self, x):
        return self.last(torch.relu(self.shared(torch.relu(self.shared(x)))))
