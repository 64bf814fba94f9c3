# SPDX-License-Identifier: Apache-2.0
"""The forward error bound: no right kernel is ever outside of it, whatever the model and the input; wrong ones are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fused_mlp.kernels import Kernel, _cpu
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.kernels.backends.eager import EagerKernel
from fused_mlp.kernels.backends.torch import TorchKernel
from fused_mlp.kernels.error_bound import PRECISIONS, forward_with_bound
from fused_mlp.models import LayerSpec, LayerWeights, Mlp, MlpSpec
from fused_mlp.models.program.formula import PARAMETERS, SUGAR
from fused_mlp.models.program.spec import Elementwise, Linear, Norm, Output
from tests.kernels.cpu_models import (
    ACTIVATIONS,
    OUTPUT_ACTIVATIONS,
    plain_mlp,
    random_mlp,
    rows_for,
    run,
    specs,
)
from tests.support import random_programs

BUILDERS: dict[str, Callable[[Mlp], Kernel]] = {
    "eager": lambda mlp: EagerKernel(mlp, "cpu", None),
    "torch": lambda mlp: TorchKernel(mlp, None),
    **{isa: lambda mlp, isa=isa: CpuKernel(mlp, 1, isa) for isa in _cpu.usable_isas()},  # type: ignore[misc]
}
DTYPES = ["float32", "bfloat16", "float16"]
properties = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def outside(kernel: Kernel, mlp: Mlp, x: np.ndarray[Any, Any]) -> bool:
    """Whether the kernel is said to have something wrong."""
    bound = forward_with_bound(mlp, x, PRECISIONS[kernel.describe().dtype])
    return not bound.admits(run(kernel, x)).all()


def check_backends(mlp: Mlp, x: np.ndarray[Any, Any]) -> None:
    """One bound for all backends that compute in the same precision: it takes longer than they do."""
    bounds: dict[str, Any] = {}
    for name, build in BUILDERS.items():
        kernel = build(mlp)
        dtype = kernel.describe().dtype
        bounds[dtype] = bounds.get(dtype) or forward_with_bound(mlp, x, PRECISIONS[dtype])
        y, bound = run(kernel, x), bounds[dtype]
        for at in np.argwhere(~bound.admits(y))[:1]:
            where = tuple(at)
            raise AssertionError(
                f"{name}: {y[where]} at {where} for {bound.value[where]} +- {bound.error[where]}"
            )


@properties
@given(
    spec=specs(),
    dtype=st.sampled_from(DTYPES),
    exponent=st.integers(-30, 30),
    spread=st.sampled_from([0, 3]),
    seed=st.integers(0, 1000),
)
def test_no_right_kernel_is_outside(spec: MlpSpec, dtype: str, exponent: int, spread: int, seed: int) -> None:
    mlp = random_mlp(spec.model_copy(update={"dtype": dtype}), seed)
    x = rows_for(mlp, 7, seed)
    # Rows, and with a spread also the values in a row, of different sizes.
    sizes = np.random.default_rng(seed).uniform(-spread, spread, x.shape)
    x = (x * 10.0 ** (exponent + sizes)).astype(np.float32)
    check_backends(mlp, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", OUTPUT_ACTIVATIONS)
def test_no_right_activation_is_outside_over_its_whole_range(activation: Any, dtype: str) -> None:
    layers = (LayerSpec(out_features=1, bias=False),)
    spec = MlpSpec(in_features=1, layers=layers, output_activation=activation, dtype=dtype)  # type: ignore[arg-type]
    mlp = Mlp(spec, (LayerWeights(weight=np.ones((1, 1), np.float32)),))
    tails = np.logspace(-45, 38, 1000)
    x = np.concatenate([np.linspace(-30, 30, 20001), tails, -tails]).astype(np.float32)[:, None]
    check_backends(mlp, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_overflow_nan_and_infinity_prove_nothing(dtype: str) -> None:
    for activation in ACTIVATIONS:
        mlp = plain_mlp(5, 9, 3, activation=activation, output="softmax")
        mlp = random_mlp(mlp.spec.model_copy(update={"dtype": dtype}))
        special = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0], np.float32)
        x = np.random.default_rng(0).choice(special, (200, 5)).astype(np.float32)
        check_backends(mlp, x)


@pytest.mark.parametrize("output", ["identity", "softmax"])
def test_sums_that_nearly_cancel_and_sums_that_only_grow_are_admitted(output: Any) -> None:
    """The inputs that are worst for a sum of n terms: every rounding goes the same way, or only rounding is left."""
    mlp = plain_mlp(2000, 4, output=output)
    weight = mlp.layers[0].weight[0].astype(np.float64)
    grows = np.sign(weight) * 1e7 / np.abs(weight).clip(1e-3)
    cancels = grows * np.where(np.arange(2000) % 2, 1, -1)
    x = np.stack([grows, cancels]).astype(np.float32)
    check_backends(mlp, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_wrong_weight_is_found(activation: Any, dtype: str) -> None:
    """In a small model at ordinary scale: 1 % in float32, 10 % in float16. bfloat16 has 8 bits, and 50 rows are few."""
    spec = plain_mlp(4, 8, 3, activation=activation).spec.model_copy(update={"dtype": dtype})
    right = random_mlp(spec)
    off = {"float32": 0.01, "float16": 0.1, "bfloat16": 1.0}[dtype]
    tensors = {name: np.array(tensor, np.float32) for name, tensor in right.tensors().items()}
    largest = np.unravel_index(np.abs(tensors["layers.1.weight"]).argmax(), (3, 8))
    tensors["layers.1.weight"][largest] *= 1 + off
    wrong = Mlp(spec, tensors)
    x = 3 * rows_for(right, 50)
    assert outside(EagerKernel(wrong, "cpu", None), right, x)
    assert not outside(EagerKernel(right, "cpu", None), right, x)


def test_a_kernel_that_multiplies_in_tf32_is_right_only_if_it_says_so() -> None:
    mlp = plain_mlp(6, 16, 3)
    x = torch.from_numpy(rows_for(mlp, 200))
    first, second = (torch.from_numpy(_tf32(layer.weight)) for layer in mlp.layers)
    biases = [torch.from_numpy(layer.bias) for layer in mlp.layers if layer.bias is not None]
    hidden = torch.relu(torch.from_numpy(_tf32(x.numpy())) @ first.T + biases[0])
    y = (torch.from_numpy(_tf32(hidden.numpy())) @ second.T + biases[1]).numpy()
    assert forward_with_bound(mlp, x.numpy(), PRECISIONS["tf32"]).admits(y).all()
    assert not forward_with_bound(mlp, x.numpy(), PRECISIONS["float32"]).admits(y).all()


def _tf32(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Truncated, as a GPU does: further off than rounded."""
    return (np.ascontiguousarray(values, np.float32).view(np.int32) & ~0x1FFF).view(np.float32)


def function_mlp(function: str, dtype: str = "float32") -> Mlp:
    step = Elementwise(name="f", input="input", function=function)
    return Mlp(MlpSpec(in_features=1, steps=(step,), dtype=dtype), {})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@properties
@given(
    seed=st.integers(0, 1 << 30),
    steps=st.sampled_from([3, 8, 15]),
    width=st.sampled_from([4, 30]),
    exponent=st.one_of(st.just(0), st.integers(-30, 30)),
)
def test_no_right_kernel_of_a_program_is_outside(
    dtype: str, seed: int, steps: int, width: int, exponent: int
) -> None:
    mlp = random_programs.random_mlp(seed, steps=steps, max_width=width, dtype=dtype)
    x = random_programs.random_rows(mlp, 7, seed) * np.float32(10.0**exponent)
    check_backends(mlp, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "function",
    [
        *(name for name in (*PARAMETERS, *SUGAR) if name not in ("clip", *ACTIVATIONS)),
        "clip(x, -0.3, 0.7)",
        "leaky_relu(x, -0.3)",
        "elu(x, -2)",
        "softplus(x, 2, 1)",  # with a visible jump at its threshold
        "log(abs(x))",
        "sqrt(x * x)",
        "1 / (x - 1)",
    ],
)
def test_no_right_function_is_outside_over_its_whole_range(function: str, dtype: str) -> None:
    mlp = function_mlp(function, dtype)
    tails = np.logspace(-45, 38, 1000)
    x = np.concatenate([np.linspace(-30, 30, 20001), tails, -tails]).astype(np.float32)[:, None]
    check_backends(mlp, x)


@pytest.mark.parametrize(
    ("function", "known"),
    [
        ("1 / x", [True, False, True, True]),
        ("log", [False, False, True, True]),
        ("sqrt", [False, True, True, True]),  # zero is no rounded number
        ("log1p", [False, True, True, True]),
        ("expm1", [True, True, True, True]),
        ("sqrt(relu(x))", [True, True, True, True]),
        ("exp", [True, True, True, True]),
        ("x / (1 + abs(x))", [True, True, True, True]),
    ],
)
def test_the_bound_is_infinite_only_where_nothing_is_known(function: str, known: list[bool]) -> None:
    x = np.array([[-1.0], [0.0], [1e-3], [2.0]], np.float32)
    bound = forward_with_bound(function_mlp(function), x, PRECISIONS["float32"])
    assert np.isfinite(bound.error)[:, 0].tolist() == known
    assert (bound.error[known] <= 1e-2).all()  # sqrt has an infinite slope at zero


@pytest.mark.parametrize("kind", ["layer", "rms", "l2"])
def test_a_wrong_norm_is_found(kind: Any) -> None:
    """Another eps, a weight that is off by 1 %: in a block of ordinary scale."""

    def make(eps: float, off: float) -> Mlp:
        steps = (
            Linear(name="fc1", input="input", out_features=16),
            Norm(name="norm", input="fc1", kind=kind, eps=eps),
            Linear(name="fc2", input="norm", out_features=3),
        )
        spec = MlpSpec(in_features=8, steps=steps, outputs=(Output(value="fc2"),))
        mlp = random_programs.random_weights(spec)
        tensors = {
            name: tensor * (1 + off if name == "norm.weight" else 1) for name, tensor in mlp.tensors().items()
        }
        return Mlp(spec, tensors)

    right = make(1e-2, 0.0)
    x = random_programs.random_rows(right, 50)
    assert not outside(EagerKernel(right, "cpu", None), right, x)
    assert outside(EagerKernel(make(1e-2, 0.01), "cpu", None), right, x)
    if kind != "l2":  # its eps counts near zero only
        assert outside(EagerKernel(make(4e-2, 0.0), "cpu", None), right, x)


def test_a_norm_of_equal_values_is_admitted() -> None:
    """Only rounding is left of the centred row, and eps is all that keeps the length from zero."""
    steps = (
        Linear(name="fc1", input="input", out_features=64, bias=False),
        Norm(name="norm", input="fc1", kind="layer", eps=1e-5),
    )
    spec = MlpSpec(in_features=32, steps=steps)
    mlp = random_programs.random_weights(spec)
    tensors = mlp.tensors()
    tensors["fc1.weight"][:] = tensors["fc1.weight"][0]
    x = 1000 * random_programs.random_rows(mlp, 50)
    check_backends(Mlp(spec, tensors), x)
