# SPDX-License-Identifier: Apache-2.0
"""The functions of formulas in torch, for any dtype and device, differentiable: what
`models.program.activations.PRIMITIVES` is in numpy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fused_mlp.models.program.formula import PARAMETERS, Formula


def _maximum(a: Any, b: Any) -> Any:
    """torch.maximum takes no numbers."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.maximum(a, b)
    return torch.clamp(a, min=b) if isinstance(a, Tensor) else torch.clamp(b, min=a)


def _minimum(a: Any, b: Any) -> Any:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.minimum(a, b)
    return torch.clamp(a, max=b) if isinstance(a, Tensor) else torch.clamp(b, max=a)


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


# (values, parameters ...) -> values. Two values of a combination may be a tensor and a number.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "maximum": _maximum,
    "minimum": _minimum,
    "gelu_tanh": _gelu_tanh,
    **{
        name: getattr(torch, name, None) or getattr(functional, name)
        for name in PARAMETERS
        if name != "gelu_tanh"
    },
}


def apply(formula: Formula, x: Tensor) -> Tensor:
    """x: any shape."""
    registers = [x]
    for each in formula.instructions:
        operands = [registers[at] if at >= 0 else formula.constants[-1 - at] for at in each.operands]
        registers.append(FUNCTIONS[each.op](*operands, *each.numbers))
    return registers[-1]
