# SPDX-License-Identifier: Apache-2.0
"""Every function of a formula, in the CPU kernel: over its whole range, on special values, in every place where a
function can run, and composed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fused_mlp.kernels import _cpu
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.models import Mlp, MlpSpec, from_torch
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.formula import PARAMETERS, parse
from fused_mlp.models.program.spec import INPUT, Combine, Elementwise, Gated, Linear, Norm
from tests.support.random_programs import FUNCTIONS

ISAS = _cpu.usable_isas()
NAMED = {**{name: name for name in PARAMETERS if name != "clip"}, "clip": "clip(x, -1, 6)"}
# What torch makes of them, where NaN and infinity are not what the formula's own arithmetic gives.
TORCH = {
    "relu": torch.relu,
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "sign": torch.sign,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "elu": torch.nn.functional.elu,
    "softplus": torch.nn.functional.softplus,
    "clip": lambda x: torch.clamp(x, -1, 6),
    "mish": torch.nn.functional.mish,
}


def apply(function: str, x: np.ndarray, isa: str) -> np.ndarray:
    """Through a program of one step; x: any number of values."""
    spec = MlpSpec(in_features=x.size, steps=(Elementwise(name="y", input=INPUT, function=function),))
    y = np.full((1, x.size), 7.0, np.float32)
    CpuKernel(Mlp(spec, {}), 1, isa).run(np.ascontiguousarray(x, np.float32).reshape(1, -1), y)
    return y[0]


def whole_range() -> np.ndarray:
    near = np.linspace(-12, 12, 40_001)
    far = np.logspace(-37, 37, 4001)
    return np.concatenate([near, far, -far]).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMED)
def test_error_over_the_whole_range(name: str, isa: str) -> None:
    x = whole_range()
    exact = parse(NAMED[name])(x.astype(np.float64))
    fits = np.isfinite(exact) & (np.abs(exact) < 5e37)
    y = apply(NAMED[name], x, isa)
    # A few units in the last place (csrc/tests/activation_test.cpp counts them); gelu's tails fall so steeply that
    # the rounding of x^2 shows, and PyTorch's formula for them, which is this reference's too, is zero there.
    tail = 1e-6 if name in ("gelu", "gelu_tanh") else 1e-36
    np.testing.assert_allclose(y[fits], exact[fits], rtol=8e-7, atol=tail)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(exact))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TORCH)
def test_special_values_are_those_of_torch(name: str, isa: str) -> None:
    tiny = np.float32(1e-42)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, 1e10, 3e38, -3e38]
    x = np.array([*special, 88.7, 89.0, -104.0, 1, -1, -1.5, 1e-8], np.float32)
    expected = TORCH[name](torch.from_numpy(x)).numpy()
    y = apply(NAMED[name], x, isa)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-37)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))


class Symlog(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x) * torch.log1p(torch.abs(x))


class Symexp(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x) * torch.expm1(torch.abs(x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("last", [Symlog, Symexp])
def test_small_values_keep_their_digits(last: type[torch.nn.Module], isa: str) -> None:
    """As written in torch: neither the reader nor the kernel adds one to them."""
    identity = torch.nn.Linear(6, 6, bias=False)
    torch.nn.init.eye_(identity.weight)
    mlp = from_torch(torch.nn.Sequential(identity, last()))
    x = np.array([[1e-6, 1e-8, -1e-8, 3e-20, 0.0, -0.3]], np.float32)
    expected = last()(torch.from_numpy(x.astype(np.float64))).numpy()
    y = np.empty((1, 6), np.float32)
    CpuKernel(mlp, 1, isa).run(x, y)
    np.testing.assert_allclose(y, expected, rtol=5e-7)
    np.testing.assert_allclose(evaluate(mlp, x), expected, rtol=5e-7)


class Composed(torch.nn.Module):
    """Functions that the reader or a formula writes with others, whose plain definition cancels or overflows."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        functional = torch.nn.functional
        limit = torch.arange(2) + 1e9
        return {
            "sign": torch.sign(x),
            "asinh": torch.asinh(x),
            "acosh": torch.acosh(x),
            "atanh": torch.atanh(x),
            "sinh": torch.sinh(x),
            "cosh": torch.cosh(x),
            "rsqrt": torch.rsqrt(x),
            "log2": torch.log2(x),
            "log10": torch.log10(x),
            "logsigmoid": functional.logsigmoid(x),
            "softplus": functional.softplus(x, 2.0, 30.0),
            "softsign": functional.softsign(x),
            "selu": functional.selu(x),
            "celu": functional.celu(x, 3.0),
            "direction": x / x.abs(),
            "log1p_of_expm1": torch.log1p(torch.expm1(x.abs().clamp(max=60.0))),
            "limits": x.clamp(-limit, limit),
            **{f"power_{power}": x**power for power in (0.5, 1.5, 2.5, 3, -0.5, -1, -1.5, -2)},
        }


@pytest.fixture(scope="module")
def composed() -> Mlp:
    return from_torch(Composed(), in_features=2)


@pytest.mark.parametrize("isa", ISAS)
def test_composed_functions_from_1e_30_to_1e30(composed: Mlp, isa: str) -> None:
    sizes = np.logspace(-30, 30, 601)
    tiny = [0.0, 1.0, 1e-42]  # the last is no normal number
    x = np.concatenate([np.linspace(0, 12, 1202), sizes, tiny]).astype(np.float32)
    x = np.concatenate([x, -x])[:, None].repeat(2, axis=1)
    y = np.empty((len(x), composed.spec.out_features), np.float32)
    CpuKernel(composed, 1, isa).run(x, y)
    reference = evaluate(composed, x)
    for name, values in Composed()(torch.from_numpy(x.astype(np.float64))).items():
        expected = values.numpy()
        told = ~(np.abs(expected) > 1e38)  # beyond it float32 overflows
        for got in (y, reference):
            # Sixteen roundings; results that are no normal numbers have fewer digits.
            part = got[:, composed.spec.columns(name)]
            np.testing.assert_allclose(part[told], expected[told], rtol=2e-6, atol=1e-37, err_msg=name)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_composed_functions_in_every_place(function: str, isa: str) -> None:
    """In a step of its own, in the epilogue of a product before and after a combination, as a gate and after one."""
    width = 37
    identity = np.eye(width, dtype=np.float32)
    spec = MlpSpec(
        in_features=width,
        steps=(
            Elementwise(name="alone", input=INPUT, function=function),
            Linear(name="fc", input=INPUT, out_features=width, bias=False),
            Elementwise(name="first", input="fc", function=function),
            Combine(name="sum", op="add", inputs=("first", INPUT)),
            Elementwise(name="second", input="sum", function=function),
            Gated(name="glu", input=INPUT, out_features=width, function=function, bias=False),
            Elementwise(name="after", input="glu", function=function),
        ),
        outputs=[{"name": name, "value": name} for name in ("alone", "second", "after")],
    )
    mlp = Mlp(spec, dict.fromkeys(("fc.weight", "glu.weight", "glu.gate_weight"), identity))
    x = np.random.default_rng(0).uniform(-3, 3, (11, width)).astype(np.float32)
    kernel = CpuKernel(mlp, 1, isa)
    y = np.empty((11, 3 * width), np.float32)
    kernel.run(x, y)
    formula, wide = parse(function), x.astype(np.float64)
    expected = [formula(wide), formula(formula(wide) + wide), formula(formula(wide) * wide)]
    np.testing.assert_allclose(y, np.concatenate(expected, axis=1), rtol=3e-6, atol=3e-6)
    single = np.empty((1, 3 * width), np.float32)
    for row in range(11):
        kernel.run(x[row : row + 1], single)
        np.testing.assert_array_equal(single[0].view(np.uint32), y[row].view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
def test_huge_angles_beside_small_ones(isa: str) -> None:
    """A lane's result does not depend on the other lanes, also where one of them takes another way."""
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    mixed = x.copy()
    mixed[5::7] = 1e20
    for function, exact in (("sin", np.sin), ("cos", np.cos)):
        y = apply(function, mixed, isa)
        np.testing.assert_allclose(y, exact(mixed.astype(np.float64)), rtol=0, atol=2e-7)
        kept = mixed == x
        np.testing.assert_array_equal(y[kept], apply(function, x, isa)[kept])


def test_longest_formula() -> None:
    """As many operations as a formula may have, all of whose results are needed at the end."""
    text = "x"
    for _ in range(6):
        text = f"sin({text}) * 0.5 + x"
    deep = parse(text)
    x = np.linspace(-2, 2, 300, dtype=np.float32)
    np.testing.assert_allclose(apply(text, x, ISAS[0]), deep(x.astype(np.float64)), rtol=0, atol=2e-6)


def test_functions_too_long_for_one_formula() -> None:
    """After a norm, where functions are joined as long as they fit."""
    names = [f"f{index}" for index in range(12)]
    sources = ["norm", *names[:-1]]
    text = "sin(x) * 0.5 + cos(x) * 0.25 + tanh(x) * 0.5"
    steps = [
        Elementwise(name=name, input=source, function=text)
        for name, source in zip(names, sources, strict=True)
    ]
    norm = Norm(name="norm", input=INPUT, kind="rms", eps=0.1, weight=False, bias=False)
    mlp = Mlp(MlpSpec(in_features=50, steps=(norm, *steps)), {})
    x = np.random.default_rng(0).standard_normal((7, 50), dtype=np.float32)
    y = np.empty((7, 50), np.float32)
    CpuKernel(mlp, 1).run(x, y)
    np.testing.assert_allclose(y, evaluate(mlp, x.astype(np.float64)), rtol=0, atol=2e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_nan_of_either_operand_wins(op: str, isa: str) -> None:
    spec = MlpSpec(
        in_features=4,
        steps=(
            {"op": "slice", "name": "a", "input": INPUT, "start": 0, "stop": 2},
            {"op": "slice", "name": "b", "input": INPUT, "start": 2, "stop": 4},
            Combine(name="y", op=op, inputs=("a", "b")),
        ),
    )
    y = np.zeros((1, 2), np.float32)
    CpuKernel(Mlp(spec, {}), 1, isa).run(np.array([[np.nan, 1, 1, np.nan]], np.float32), y)
    assert np.isnan(y).all()
