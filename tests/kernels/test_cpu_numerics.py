# SPDX-License-Identifier: Apache-2.0
"""The CPU kernel is right: against float64, on every instruction set of this machine, for every model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fused_mlp.kernels import _cpu
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.models import LayerSpec, Mlp, MlpSpec
from tests.kernels.cpu_models import (
    ACTIVATIONS,
    OUTPUT_ACTIVATIONS,
    plain_mlp,
    random_mlp,
    reference,
    rows_for,
    run,
    specs,
)

ISAS = _cpu.usable_isas()
# Deterministic: the claim "at most twice eager's error" compares two random quantities, and a suite that
# fails once a month teaches people to rerun it.
properties = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def assert_right(mlp: Mlp, x: np.ndarray, threads: int = 1) -> None:
    expected = reference(mlp, x)
    allowed = 2.0 * np.abs(expected.eager - expected.exact).max() + expected.rounding
    for isa in ISAS:
        y = run(CpuKernel(mlp, threads, isa), x)
        np.testing.assert_allclose(y, expected.exact, rtol=0, atol=allowed, err_msg=isa)


@properties
@given(spec=specs(), rows=st.integers(1, 20), threads=st.integers(1, 2))
def test_error_is_at_most_twice_that_of_eager(spec: MlpSpec, rows: int, threads: int) -> None:
    mlp = random_mlp(spec)
    assert_right(mlp, rows_for(mlp, rows), threads)


@pytest.mark.parametrize("rows", [1, 2, 8, 128])
@pytest.mark.parametrize(
    "widths", [(784, 512, 256, 10), (256, 1024, 1024, 256), (1024, 2048, 64), (3000, 16)]
)
def test_wide_layers_and_long_sums(widths: tuple[int, ...], rows: int) -> None:
    mlp = plain_mlp(*widths, activation="gelu")
    assert_right(mlp, rows_for(mlp, rows), threads=2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_every_activation_over_its_whole_range(activation: str, gated: bool) -> None:
    layer = LayerSpec(out_features=1, activation=activation, gated=gated, bias=False)
    last = LayerSpec(out_features=1, bias=False)
    mlp = Mlp(
        MlpSpec(in_features=1, layers=(layer, last)),
        {
            name: torch.ones(1, 1)
            for name in random_mlp(MlpSpec(in_features=1, layers=(layer, last))).tensors()
        },
    )
    x = np.concatenate([np.linspace(-30, 30, 20001), np.logspace(-30, 2, 500), -np.logspace(-30, 2, 500)])
    assert_right(mlp, x.astype(np.float32)[:, None])


@pytest.mark.parametrize("output", OUTPUT_ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 3, 16, 37])
def test_every_output_activation(output: str, width: int) -> None:
    mlp = plain_mlp(20, 30, width, output=output)
    assert_right(mlp, 3 * rows_for(mlp, 50))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_models_are_computed_in_float32(dtype: str) -> None:
    spec = plain_mlp(64, 128, 10, activation="silu").spec.model_copy(update={"dtype": dtype})
    mlp = random_mlp(spec)
    x = rows_for(mlp, 32)
    # What float16 and bfloat16 cannot hold of the input is not the kernel's error.
    x = torch.from_numpy(x).to(getattr(torch, dtype)).float().numpy()
    expected = reference(mlp, x)
    error = np.abs(run(CpuKernel(mlp, 1), x) - expected.exact).max()
    assert error <= 0.1 * np.abs(expected.eager - expected.exact).max()
