"""Which activation of the spec an unknown elementwise function is, told by its values. Exporters spell the
same function in many ways (gelu alone has a dozen); its values are what they agree on."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from fused_mlp.models.importers.torch_modules import activation_module
from fused_mlp.models.spec import DEFAULT_SLOPE, Activation

# Where to evaluate the function: densely where activations bend, then far out, where a clipped one shows its
# limits. float64, (n,).
_FAR = torch.tensor([50.0, 80.0, 300.0, 3e3, 3e4, 3e6], dtype=torch.float64)
POINTS = torch.cat([torch.linspace(-12, 12, 2401, dtype=torch.float64), _FAR, -_FAR])
# gelu and gelu_tanh, the closest pair, are 5e-4 apart; constants written as float32 move values by 1e-7.
TOLERANCE = 1e-5
# Constants written as float16 (sqrt(2) = 1.4141) move gelu by up to 3e-5.
HALF_TOLERANCE = 1e-4
# Beyond this a spelling such as log(1 + exp(x)) overflows in float32, where the spec's function does not.
_OVERFLOW = 80.0


def match_activation(values: Tensor, tolerance: float = TOLERANCE) -> tuple[Activation, float] | None:
    """The activation with these values at POINTS, and its slope; None if there is none."""
    if values.shape != POINTS.shape:
        return None
    for name in get_args(Activation):
        slope = DEFAULT_SLOPE if name != "leaky_relu" else _tidy(-_value_at(-1.0, values))
        with torch.inference_mode():
            expected = activation_module(name, slope)(POINTS)
        if _close(values, expected, tolerance):
            return name, slope
    return None


def match_affine(values: Tensor) -> tuple[float, float] | None:
    """(scale, shift) if the function is x * scale + shift, else None."""
    shift = _value_at(0.0, values)
    scale = _value_at(1.0, values) - shift
    return (scale, shift) if _close(values, POINTS * scale + shift, TOLERANCE) else None


def _value_at(point: float, values: Tensor) -> float:
    return float(values[int((POINTS - point).abs().argmin())])


def _close(values: Tensor, expected: Tensor, tolerance: float) -> bool:
    """NaN is close to nothing."""
    excused = ~torch.isfinite(values) & (POINTS.abs() >= _OVERFLOW)
    error = (values - expected).abs() / expected.abs().clamp(min=1.0)
    return bool((excused | (error <= tolerance)).all())


def _tidy(slope: float) -> float:
    """0.01 where float32 arithmetic made 0.009999999776."""
    return float(f"{slope:.6g}")
