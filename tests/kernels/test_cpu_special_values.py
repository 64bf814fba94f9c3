# SPDX-License-Identifier: Apache-2.0
"""NaN, infinities, signed zeros, denormals and huge values come out as eager PyTorch has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fused_mlp.kernels import _cpu
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.models import LayerSpec, LayerWeights, Mlp, MlpSpec
from tests.kernels.cpu_models import ACTIVATIONS, plain_mlp, reference, rows_for, run

ISAS = _cpu.usable_isas()
TINY = 1e-40  # a denormal
SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    TINY,
    -TINY,
    1e-30,
    3e38,
    -3e38,
    88.0,
    -88.0,
    -95.0,
    -103.0,
    104.0,
]


def scalar_mlp(width: int, **layer: object) -> Mlp:
    """One input, passed through an activation: the pre-activation is the input itself."""
    spec = MlpSpec(in_features=1, layers=(LayerSpec(out_features=width, bias=False, gated=True, **layer),))
    ones = torch.ones(width, 1)
    return Mlp(spec, (LayerWeights(weight=ones, gate_weight=ones),))


@pytest.fixture
def same_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager without oneDNN, whose gelu for AVX-512 makes NaN of infinity and infinity of 3e38; its others do not."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 19])
@pytest.mark.usefixtures("same_on_any_machine")
def test_activations_of_special_values(isa: str, activation: str, width: int) -> None:
    layers = (LayerSpec(out_features=width, bias=False),)
    spec = MlpSpec(in_features=1, layers=layers, output_activation=activation)
    mlp = Mlp(spec, (LayerWeights(weight=torch.ones(width, 1)),))
    x = np.array(SPECIAL, np.float32)[:, None]
    expected = reference(mlp, x).eager
    y = run(CpuKernel(mlp, 1, isa), x)
    # A few ulp of the value; below the smallest normal number eager itself flushes in some of its paths.
    np.testing.assert_allclose(y, expected, rtol=3e-6, atol=1.2e-38, equal_nan=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.usefixtures("same_on_any_machine")
def test_gates_of_special_values(isa: str, activation: str) -> None:
    mlp = scalar_mlp(5, activation=activation)
    # Without 3e38, whose square is infinite in one dtype only.
    x = np.array([v for v in SPECIAL if not 1e30 < abs(v) < np.inf], np.float32)[:, None]
    y = run(CpuKernel(mlp, 1, isa), x)
    np.testing.assert_allclose(y, reference(mlp, x).eager, rtol=3e-6, atol=1.2e-38, equal_nan=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("output", ["softmax", "log_softmax"])
@pytest.mark.parametrize("width", [1, 4, 11])
def test_softmax_of_special_values(isa: str, output: str, width: int) -> None:
    spec = MlpSpec(
        in_features=width, layers=(LayerSpec(out_features=width, bias=False),), output_activation=output
    )
    mlp = Mlp(spec, (LayerWeights(weight=torch.eye(width)),))
    rows = [np.zeros(width), np.full(width, 300.0), np.full(width, -300.0), np.arange(width) * -60.0]
    x = np.array(rows, np.float32)
    y = run(CpuKernel(mlp, 1, isa), x)
    np.testing.assert_allclose(y, reference(mlp, x).eager, rtol=2e-6, atol=5e-45)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("output", ["softmax", "log_softmax"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_softmax_of_a_row_with_nan_or_infinity_is_nan_in_that_row_only(
    isa: str, output: str, bad: float
) -> None:
    mlp = plain_mlp(3, 9, output=output)
    x = rows_for(mlp, 3)
    x[1, 1] = bad
    y = run(CpuKernel(mlp, 1, isa), x)
    assert np.isfinite(y[[0, 2]]).all()
    # A row that holds -inf beside finite values is NaN in PyTorch only where its largest value is not finite.
    np.testing.assert_array_equal(np.isnan(y), np.isnan(reference(mlp, x).eager))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_padding_never_makes_nan_of_infinity(isa: str, rows: int) -> None:
    # 17 outputs fill one panel and a little of the next, whose zero padding times infinity is NaN.
    mlp = plain_mlp(5, 17, 3)
    x = np.abs(rows_for(mlp, rows))
    x[:, 0] = np.inf
    expected = reference(mlp, x)
    y = run(CpuKernel(mlp, 1, isa), x)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected.eager))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(expected.eager))


@pytest.mark.parametrize("isa", ISAS)
def test_denormals_are_kept_even_for_callers_that_flush_them(isa: str) -> None:
    spec = MlpSpec(in_features=1, layers=(LayerSpec(out_features=1, bias=False),))
    kernel = CpuKernel(Mlp(spec, (LayerWeights(weight=torch.ones(1, 1)),)), 1, isa)
    x = np.array([[TINY]], np.float32)
    assert torch.set_flush_denormal(True)
    try:
        y = run(kernel, x)
    finally:
        torch.set_flush_denormal(False)
    assert y.view(np.uint32)[0, 0] == x.view(np.uint32)[0, 0]
