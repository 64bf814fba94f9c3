"""from_torch: what is read, what is folded, and what is refused by name."""

from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from fused_mlp import models
from fused_mlp.models import LayerSpec, LayerWeights, Mlp, MlpSpec, ModelLoadError, OutputActivation
from fused_mlp.models.importers.torch_modules import GatedLinear, activation_module


def assert_same_function(module: nn.Module, mlp: Mlp, x: torch.Tensor) -> None:
    """In float64, where only a wrong formula can differ; folding rounds the weights once, to float32."""
    with torch.inference_mode():
        expected = module.eval().double()(x.double())
        got = mlp.to_torch().double()(x.flatten(1).double())
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def batch_norm(features: int) -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(features, eps=1e-3)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        assert tensor is not None
        nn.init.normal_(tensor)
    assert norm.running_var is not None
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


class LlamaMlp(nn.Module):
    def __init__(self, act_fn, bias=False):
        super().__init__()
        self.gate_proj = nn.Linear(6, 9, bias=bias)
        self.up_proj = nn.Linear(6, 9, bias=False)
        self.down_proj = nn.Linear(9, 6, bias=bias)
        self.act_fn = act_fn
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.down_proj(self.dropout(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", [*get_args(models.Activation), "softmax", "log_softmax"])
def test_every_activation_survives_the_round_trip(name: OutputActivation):
    slope = 0.3 if name == "leaky_relu" else 0.01
    hidden = "identity" if name.endswith("softmax") else name
    spec = MlpSpec(
        in_features=4,
        layers=(
            LayerSpec(out_features=5, activation=hidden, negative_slope=slope),
            LayerSpec(out_features=3, activation=hidden, negative_slope=slope, gated=True),
            LayerSpec(out_features=2, bias=False),
        ),
        output_activation=name,
        output_negative_slope=slope,
    )
    mlp = Mlp(
        spec,
        (
            LayerWeights(torch.randn(5, 4), torch.randn(5)),
            LayerWeights(torch.randn(3, 5), torch.randn(3), torch.randn(3, 5), torch.randn(3)),
            LayerWeights(torch.randn(2, 3)),
        ),
    )
    again = models.from_torch(mlp.to_torch())
    assert again.spec == spec
    assert all(np.array_equal(array, again.tensors()[key]) for key, array in mlp.tensors().items())


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(4, 3),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.SiLU())), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Identity(), nn.Linear(4, 5), nn.Dropout(), nn.ReLU(), nn.AlphaDropout()),
        lambda: nn.Sequential(nn.Linear(4, 5), batch_norm(5), nn.ReLU(), nn.Linear(5, 2), batch_norm(2)),
        lambda: nn.Sequential(batch_norm(4), nn.Linear(4, 5, bias=False), nn.GELU(), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), batch_norm(5), batch_norm(5), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5, affine=False), nn.ELU()),
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), batch_norm(6), LlamaMlp(nn.SiLU()), nn.Softmax(1)),
        lambda: nn.Sequential(LlamaMlp(nn.GELU("tanh")), batch_norm(6), LlamaMlp(nn.GELU(), bias=True)),
        lambda: nn.Sequential(LlamaMlp(nn.Mish()), nn.ReLU(), nn.Linear(6, 2)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU(init=0.4), nn.Linear(5, 2), nn.Hardtanh(0, 6)),
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU6()),
    ],
)
def test_modules_become_the_same_function(make):
    module = make().eval()
    first = next(part for part in module.modules() if isinstance(part, nn.Linear | nn.BatchNorm1d))
    width = first.in_features if isinstance(first, nn.Linear) else first.num_features
    x = torch.randn(7, 3, 4) if width == 12 else torch.randn(7, width)
    mlp = models.from_torch(module)
    assert_same_function(module, mlp, x)


def test_a_module_used_twice_counts_twice():
    relu, square = nn.ReLU(), nn.Linear(4, 4)
    module = nn.Sequential(square, relu, square, relu, nn.Linear(4, 2))
    mlp = models.from_torch(module)
    assert [layer.activation for layer in mlp.spec.layers] == ["relu", "relu", "identity"]
    assert_same_function(module, mlp, torch.randn(3, 4))


def test_a_module_in_training_is_read_as_in_eval_mode_and_left_as_it_was():
    module = nn.Sequential(nn.Linear(6, 6), batch_norm(6), nn.ReLU(), LlamaMlp(nn.SiLU())).train()
    mlp = models.from_torch(module)
    assert all(part.training for part in module.modules())
    assert_same_function(module, mlp, torch.randn(3, 6))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.nn.functional.silu, "silu"),
        (torch.nn.functional.gelu, "gelu"),
        (lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3))), "gelu_tanh"),
        (torch.relu, "relu"),
        (nn.LeakyReLU(0.25), "leaky_relu"),
        (nn.Identity(), "identity"),
    ],
)
def test_the_activation_of_a_gated_block_may_be_any_callable(function, name):
    block = LlamaMlp(function)
    mlp = models.from_torch(block)
    assert mlp.spec.layers[0].activation == name
    assert_same_function(block, mlp, torch.randn(5, 6))


def test_a_gated_block_that_computes_something_else_is_refused():
    class Swapped(LlamaMlp):
        def forward(self, x):
            return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))

    with pytest.raises(ModelLoadError, match=r"Swapped has gate_proj.* but does not compute"):
        models.from_torch(Swapped(nn.SiLU()))
    with pytest.raises(ModelLoadError, match="is none of the activations"):
        models.from_torch(LlamaMlp(torch.sin))
    with pytest.raises(ModelLoadError, match="softmax cannot be the activation of a gate"):
        models.from_torch(LlamaMlp(nn.Softmax(-1)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes_we_serve_are_kept(dtype):
    module = nn.Linear(3, 2).to(getattr(torch, dtype))
    assert models.from_torch(module).spec.dtype == dtype


def test_nothing_is_rounded_without_being_asked():
    with pytest.raises(ModelLoadError, match="float64, which is not served; round them with dtype='float32'"):
        models.from_torch(nn.Linear(3, 2).double())
    assert models.from_torch(nn.Linear(3, 2).double(), dtype="float32").spec.dtype == "float32"
    mixed = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2).half())
    with pytest.raises(ModelLoadError, match=r"float32 \(layer 0: Linear\), float16 \(layer 2: Linear\)"):
        models.from_torch(mixed)
    assert models.from_torch(mixed, dtype="bfloat16").spec.dtype == "bfloat16"
    with pytest.raises(ModelLoadError, match="dtype: expected float32, float16 or bfloat16, got 'int8'"):
        models.from_torch(nn.Linear(3, 2), dtype="int8")


class HasForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 2)

    def forward(self, x):
        return self.body(x)


class ShiftedLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def hooked() -> nn.Module:
    module = nn.Linear(3, 2)
    module.register_forward_hook(lambda module, args, output: output * 2)
    return module


def patched() -> nn.Module:
    module = nn.ReLU()
    module.forward = lambda x: x + 1
    return nn.Sequential(nn.Linear(3, 2), module)


def with_weight(value: float) -> nn.Module:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight[1, 1] = value
    return module


def after_linear(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), *modules)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: after_linear(nn.ReLU(), nn.Linear(2, 2), nn.Conv1d(1, 1, 1)),
            "^layer 3: Conv1d is not part of an MLP$",
        ),
        (
            lambda: after_linear(nn.Sequential(nn.ReLU(), nn.LayerNorm(2))),
            "^layer 1.1: LayerNorm is not part of an MLP$",
        ),
        (lambda: nn.Conv2d(1, 1, 1), "^Conv2d is not part of an MLP$"),
        (lambda: after_linear(nn.Threshold(0, 0)), "layer 1: Threshold is not part"),
        (lambda: after_linear(nn.ELU(alpha=0.5)), r"layer 1: ELU\(alpha=0.5\) is not part"),
        (lambda: after_linear(nn.Softplus(beta=2)), r"layer 1: Softplus\(beta=2.*\) is not part"),
        (lambda: after_linear(nn.Softplus(threshold=5)), r"layer 1: Softplus\(.*threshold=5.*\)"),
        (lambda: after_linear(nn.Softmax(dim=0)), r"layer 1: Softmax\(dim=0\) is not part"),
        (lambda: after_linear(nn.Softmax(dim=None)), r"layer 1: Softmax\(dim=None\) is not part"),
        (lambda: after_linear(nn.LogSoftmax(dim=0)), r"layer 1: LogSoftmax\(dim=0\)"),
        (lambda: after_linear(nn.Hardtanh()), r"layer 1: Hardtanh\(.*\) is not part"),
        (lambda: after_linear(nn.PReLU(2)), r"layer 1: PReLU\(num_parameters=2\) is not part"),
        (lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), "layer 0: ReLU comes before the first linear"),
        (lambda: after_linear(nn.ReLU(), nn.Tanh()), "layer 2: Tanh follows another activation"),
        (lambda: after_linear(nn.Softmax(-1), nn.Linear(2, 2)), "layer 2: Linear follows a softmax"),
        (
            lambda: nn.Sequential(
                GatedLinear(nn.Linear(3, 2), nn.Linear(3, 2), nn.ReLU()), nn.Tanh(), nn.Linear(2, 2)
            ),
            "layer 2: Linear follows a tanh after a gated layer",
        ),
        (lambda: after_linear(nn.ReLU(), batch_norm(2)), "layer 2: BatchNorm1d has no linear layer"),
        (
            lambda: after_linear(nn.ReLU(), batch_norm(2), nn.ReLU(), nn.Linear(2, 2)),
            "layer 3: ReLU follows layer 2: BatchNorm1d",
        ),
        (lambda: after_linear(nn.BatchNorm1d(2, track_running_stats=False)), "depends on the batch"),
        (lambda: after_linear(batch_norm(3)), "layer 1: BatchNorm1d: expected 2 features, got"),
        (lambda: after_linear(nn.Linear(3, 2)), "layer 1: Linear takes 3 inputs, but layer 0"),
        (lambda: nn.Sequential(nn.Flatten(0), nn.Linear(3, 2)), r"layer 0: Flatten\(0, -1\)"),
        (nn.Sequential, "no linear layer"),
        (lambda: nn.LazyLinear(3), "no weights yet"),
        (lambda: nn.Linear(3, 2, device="meta"), "not a plain dense tensor"),
        (lambda: nn.Linear(3, 2).to(torch.float8_e4m3fn), "float8_e4m3fn weights are not served"),
        (HasForward, "^HasForward is not part of an MLP: its forward is code of its own"),
        (lambda: nn.Sequential(ShiftedLinear(3, 2)), "layer 0: ShiftedLinear is not part of an MLP"),
        (hooked, "Linear has forward hooks"),
        (patched, "layer 1: ReLU is not part of an MLP"),
        (lambda: with_weight(torch.nan), "'layers.0.weight': 1 of 6 values are NaN or infinite"),
        (lambda: with_weight(-torch.inf), "'layers.0.weight': 1 of 6 values are NaN or infinite"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(make, text):
    module = make()
    with pytest.raises(ModelLoadError, match=text) as caught:
        models.from_torch(module)
    assert "\n" not in str(caught.value)


def test_a_weight_too_large_for_the_dtype_is_refused():
    with pytest.raises(ModelLoadError, match="1 of 6 values are too large for float16"):
        models.from_torch(with_weight(1e6), dtype="float16")


def test_the_table_of_modules_covers_the_spec():
    for name in get_args(models.Activation):
        assert activation_module(name)(torch.zeros(1)).shape == (1,)
