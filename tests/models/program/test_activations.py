# SPDX-License-Identifier: Apache-2.0
"""The numpy activations, which the check at load and the ONNX reader rely on, against torch's."""

import math
from typing import get_args

import numpy as np
import pytest
import torch

from fused_mlp.models import Activation
from fused_mlp.models.importers.torch.modules import activation_module
from fused_mlp.models.program.activations import erf, log_softmax, softmax
from fused_mlp.models.program.chain import function_text
from fused_mlp.models.program.formula import parse

NAMES = (*get_args(Activation), "softmax", "log_softmax")
OVER_FEATURES = {"softmax": softmax, "log_softmax": log_softmax}
SPECIAL = np.array([0.0, -0.0, 1e-300, 25.0, -25.0, 800.0, -800.0, 3e6, -3e6])


def compute(name, x, slope=0.01):
    return OVER_FEATURES[name](x) if name in OVER_FEATURES else parse(function_text(name, slope))(x)


@pytest.mark.parametrize("name", NAMES)
def test_every_activation_is_torchs_in_float64(name):
    x = np.concatenate([np.linspace(-12, 12, 20_001), SPECIAL]).reshape(-1, 10)
    expected = activation_module(name, 0.2)(torch.from_numpy(x)).numpy()
    # A few roundings: both are float64 formulas of the same function.
    np.testing.assert_allclose(compute(name, x, 0.2), expected, rtol=4e-15, atol=4e-15)


@pytest.mark.parametrize("name", NAMES)
def test_float32_stays_float32(name):
    x = np.linspace(-9, 9, 40_000, dtype=np.float32).reshape(-1, 10)
    got = compute(name, x)
    assert got.dtype == np.float32
    # Within a few roundings of the values and of the steps between.
    np.testing.assert_allclose(got, compute(name, x.astype(np.float64)), rtol=1e-6, atol=1e-6)


def test_erf_is_exact_to_the_last_bits_of_float64():
    x = np.concatenate([np.linspace(-7, 7, 100_001), SPECIAL, [np.inf, -np.inf]])
    assert np.abs(erf(x) - [math.erf(value) for value in x]).max() <= 3e-16
    assert np.isnan(erf(np.array([np.nan, -np.nan]))).all()
