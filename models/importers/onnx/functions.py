# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators of ONNX, as formulas and as names of the builder's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fused_mlp.models.program.formula import Node as Tree
from fused_mlp.models.program.formula import binary, call, constant, x
from fused_mlp.models.program.steps import Combination, Comparison

Attributes = Mapping[str, Any]


def shortest(value: Any) -> float:
    """0.01 where float32 has 0.009999999776: the shortest number that is the same one in the file's dtype."""
    number = np.float32(value) if isinstance(value, float) else value
    return float(str(number)) if np.isfinite(number) else float(number)


def _plain(name: str, _: Attributes) -> Tree:
    return call(name, x())


def _with_alpha(name: str, default: float) -> Callable[[Attributes], Tree]:
    return lambda a: call(name, x(), shortest(a.get("alpha", default)))


def _hard_sigmoid(a: Attributes) -> Tree:
    alpha, beta = shortest(a.get("alpha", 0.2)), shortest(a.get("beta", 0.5))
    return call("clip", binary("add", binary("multiply", x(), constant(alpha)), constant(beta)), 0.0, 1.0)


def _selu(a: Attributes) -> Tree:
    alpha, gamma = shortest(a.get("alpha", 1.6732632)), shortest(a.get("gamma", 1.050701))
    return binary("multiply", constant(gamma), call("elu", x(), alpha))


def _swish(a: Attributes) -> Tree:
    scaled = binary("multiply", constant(shortest(a.get("alpha", 1.0))), x())
    return (
        call("silu", x()) if a.get("alpha", 1.0) == 1.0 else binary("multiply", x(), call("sigmoid", scaled))
    )


# Operators that a formula has under the same name, in small letters: Tanh, HardSwish.
_SAME = (
    "Abs", "Acosh", "Asinh", "Atanh", "Cos", "Cosh", "Erf", "Exp", "HardSwish", "Log", "Mish", "Reciprocal", "Relu",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
)  # fmt: skip
FUNCTIONS: dict[str, Callable[[Attributes], Tree]] = {
    **{name: partial(_plain, name.lower()) for name in _SAME},
    "Celu": _with_alpha("celu", 1.0),
    "Elu": _with_alpha("elu", 1.0),
    "Gelu": lambda a: call("gelu_tanh" if a.get("approximate", "none") == "tanh" else "gelu", x()),
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": _with_alpha("leaky_relu", 0.01),
    "Neg": lambda _: binary("multiply", x(), constant(-1.0)),
    "QuickGelu": lambda a: _swish({"alpha": 1.702, **a}),
    "Selu": _selu,
    "Swish": _swish,
}
ARITHMETIC: dict[str, Combination] = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Max": "maximum", "Min": "minimum",
}  # fmt: skip
COMPARISONS: dict[str, Comparison] = {
    "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "less", "LessOrEqual": "less_equal",
    "Equal": "equal",
}  # fmt: skip
