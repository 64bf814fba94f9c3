"""Which activation of the spec an unknown elementwise function is, found by trying it out on numbers.
Exporters spell the same function in many ways (gelu alone has a dozen); its values are what they agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import torch
from torch import Tensor

from models.modules import activation_module
from models.spec import DEFAULT_SLOPE, Activation

# Dense where activations bend, then far out, where a clipped function shows its limits.
_FAR = torch.tensor([50.0, 80.0, 300.0, 3e3, 3e4, 3e6], dtype=torch.float64)
_POINTS = torch.cat([torch.linspace(-12, 12, 2401, dtype=torch.float64), _FAR, -_FAR])
# gelu and gelu_tanh, the closest pair, are 5e-4 apart; constants written as float32 move values by 1e-7.
TOLERANCE = 1e-5
# Constants written as float16 (sqrt(2) = 1.4141) move gelu by up to 3e-5.
HALF_TOLERANCE = 1e-4
# Beyond this a spelling such as log(1 + exp(x)) overflows in float32, where the spec's function does not.
_OVERFLOW = 80.0


def match_activation(
    function: Callable[[Tensor], Tensor], tolerance: float = TOLERANCE
) -> tuple[Activation, float] | None:
    """The activation and its slope, or None. `function`: elementwise, (n,) float64 to the same."""
    values = _evaluate(function)
    if values is None:
        return None
    for name in get_args(Activation):
        slope = DEFAULT_SLOPE if name != "leaky_relu" else _tidy(-float(values[_POINTS == -1.0][0]))
        if _close(values, activation_module(name, slope)(_POINTS), tolerance):
            return name, slope
    return None


def match_affine(function: Callable[[Tensor], Tensor]) -> tuple[float, float] | None:
    """(scale, shift) if the function is x * scale + shift, else None."""
    values = _evaluate(function)
    if values is None:
        return None
    shift = float(values[_POINTS == 0.0][0])
    scale = float(values[_POINTS == 1.0][0]) - shift
    return (scale, shift) if _close(values, _POINTS * scale + shift, TOLERANCE) else None


def _evaluate(function: Callable[[Tensor], Tensor]) -> Tensor | None:
    with torch.inference_mode():
        values = function(_POINTS.clone())
    if values.shape != _POINTS.shape or torch.isnan(values[_POINTS.abs() < _OVERFLOW]).any():
        return None
    return values.double()


def _close(values: Tensor, expected: Tensor, tolerance: float) -> bool:
    excused = ~torch.isfinite(values) & (_POINTS.abs() >= _OVERFLOW)
    error = (values - expected).abs() / expected.abs().clamp(min=1.0)
    return bool((excused | (error <= tolerance)).all())


def _tidy(slope: float) -> float:
    """0.01 where float32 arithmetic made 0.009999999776."""
    return float(f"{slope:.6g}")
