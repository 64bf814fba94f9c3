# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of two values, and functions and conditions of one."""

# ruff: noqa: A002 - the arguments, and their names, are ATen's

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import (
    Rows,
    taken,
)
from fused_mlp.models.importers.torch.aten.calls import (
    OPERATORS,
    Call,
    Reader,
    reads,
)
from fused_mlp.models.importers.torch.aten.refusals import DROPS
from fused_mlp.models.program import formula
from fused_mlp.models.program.spec import Combination, Comparison

# Arithmetic


def _arithmetic(op: Combination) -> Callable[..., Rows]:
    def read(call: Call, left: Any, right: Any, *, alpha: float = 1) -> Rows:
        other = call.operand(right)
        if alpha != 1:
            if isinstance(other, Rows):
                other = call.builder.arithmetic("multiply", other, float(alpha))
            else:
                other = other.of(other.exact * alpha) if isinstance(other, Constant) else other * alpha
        return call.builder.arithmetic(op, call.operand(left), other)

    return read


for _op, _names in {
    "add": ("add",),
    "subtract": ("sub", "subtract"),
    "multiply": ("mul", "multiply"),
    "maximum": ("maximum",),
    "minimum": ("minimum",),
}.items():
    for _name in _names:
        OPERATORS[_name] = _arithmetic(_op)  # type: ignore[arg-type]


@reads("fmax")
def _fmax(call: Call, left: Any, right: Any) -> Rows:
    return call.builder.extreme("maximum", call.operand(left), call.operand(right))


@reads("fmin")
def _fmin(call: Call, left: Any, right: Any) -> Rows:
    return call.builder.extreme("minimum", call.operand(left), call.operand(right))


@reads("div", "divide", "true_divide")
def _divide(call: Call, left: Any, right: Any, *, rounding_mode: str | None = None) -> Rows:
    if rounding_mode is not None:
        raise ModelLoadError("a function with steps is no part of a formula")
    return call.builder.arithmetic("divide", call.operand(left), call.operand(right))


@reads("rsub")
def _rsub(call: Call, left: Any, right: Any, alpha: float = 1) -> Rows:
    return _arithmetic("subtract")(call, right, left, alpha=alpha)


@reads("addcmul")
def _addcmul(call: Call, x: Any, left: Any, right: Any, *, value: float = 1) -> Rows:
    return _added(call, "multiply", (x, left, right), value)


@reads("addcdiv")
def _addcdiv(call: Call, x: Any, left: Any, right: Any, *, value: float = 1) -> Rows:
    return _added(call, "divide", (x, left, right), value)


def _added(
    call: Call, op: Literal["multiply", "divide"], operands: tuple[Any, Any, Any], value: float
) -> Rows:
    x, left, right = operands
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        made: Any = left * right if op == "multiply" else left / right
        return _arithmetic("add")(call, x, made, alpha=value)
    product = call.builder.arithmetic(op, call.operand(left), call.operand(right))
    return _arithmetic("add")(call, x, product, alpha=value)


@reads("lerp")
def _lerp(call: Call, start: Any, end: Any, weight: Any) -> Rows:
    build = call.builder.arithmetic
    if isinstance(start, Tensor) and isinstance(end, Tensor):
        return build(
            "add", call.operand(start), build("multiply", call.operand(weight), call.operand(end - start))
        )
    return build(
        "add",
        call.operand(start),
        build("multiply", build("subtract", call.operand(end), call.operand(start)), call.operand(weight)),
    )


@reads("pow", "float_power")
def _pow(call: Call, x: Any, exponent: Any) -> Rows:
    value = call.operand(exponent)
    if not isinstance(x, Rows):  # a ** x = exp(x log a)
        base = call.operand(x)
        if isinstance(value, Rows) and isinstance(base, float) and base > 0:
            return call.builder.function("exp", call.builder.arithmetic("multiply", value, math.log(base)))
        raise ModelLoadError("a power of this kind is no step of an MLP")
    if isinstance(value, Constant) and value.array.size == 1:
        value = float(value.exact.reshape(()))
    if not isinstance(value, float):
        raise ModelLoadError("expected one exponent for all features")
    return call.builder.power(x, value)


# Functions of one value


def _function(name: str) -> Reader:
    return lambda call, x, *numbers: call.builder.function(name, x, *numbers)


# Functions that a formula has under the same name, with the same numbers behind it. The others follow.
for _name in (*formula.PARAMETERS, *formula.SUGAR):
    OPERATORS[_name] = _function(_name)
OPERATORS["sgn"] = _function("sign")


@reads("neg")
def _neg(call: Call, x: Rows) -> Rows:
    return call.builder.arithmetic("multiply", x, -1.0)


@reads("gelu")
def _gelu(call: Call, x: Rows, *, approximate: str = "none") -> Rows:
    return call.builder.function("gelu_tanh" if approximate == "tanh" else "gelu", x)


@reads("elu")
def _elu(call: Call, x: Rows, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Rows:
    if input_scale != 1:
        raise ModelLoadError(f"expected input_scale 1, got {input_scale}")
    made = call.builder.function("elu", x, alpha)
    return made if scale == 1 else call.builder.arithmetic("multiply", made, float(scale))


@reads("rrelu")
def _rrelu(
    call: Call, x: Rows, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any
) -> Rows:
    if training:
        raise ModelLoadError(f"it draws random slopes in eval mode too: {DROPS}")
    return call.builder.function("leaky_relu", x, (lower + upper) / 2)


@reads("softshrink")
def _softshrink(call: Call, x: Rows, size: float = 0.5) -> Rows:
    clipped = formula.call("clip", formula.x(), -size, size)
    return call.builder.apply(x, formula.binary("subtract", formula.x(), clipped))


@reads("hardtanh", "clamp", "clip")
def _clamp(
    call: Call, x: Rows, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None
) -> Rows:
    low, high = min if low is None else low, max if high is None else high
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        return call.builder.function("clip", x, low, high)
    if low is not None:
        x = call.builder.arithmetic("maximum", x, call.operand(low))
    return x if high is None else call.builder.arithmetic("minimum", x, call.operand(high))


@reads("clamp_min")
def _clamp_min(call: Call, x: Rows, low: Any) -> Rows:
    return _clamp(call, x, low)


@reads("clamp_max")
def _clamp_max(call: Call, x: Rows, high: Any) -> Rows:
    return _clamp(call, x, None, high)


@reads("prelu", "_prelu_kernel")
def _prelu(call: Call, x: Rows, slope: Any) -> Rows:
    return call.builder.prelu(x, call.operand(slope), 1 if x.index.ndim > 1 else 0)


@reads("glu")
def _glu(call: Call, x: Rows, dim: int = -1) -> Rows:
    half = x.shape[x.axis(dim)] // 2
    gate = call.builder.function("sigmoid", taken(x, dim, slice(half, None)))
    return call.builder.arithmetic("multiply", taken(x, dim, slice(0, half)), gate)


@reads("threshold")
def _threshold(call: Call, x: Rows, threshold: float, value: float) -> Rows:
    return call.builder.where(call.builder.compare("less_equal", x, float(threshold)), float(value), x)


# Conditions


def _comparison(name: Comparison) -> Reader:
    return lambda call, left, right: call.builder.compare(name, call.operand(left), call.operand(right))


COMPARISONS: dict[str, Comparison] = {
    "gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal",
}  # fmt: skip
for _name, _text in COMPARISONS.items():
    OPERATORS[_name] = _comparison(_text)


@reads("isnan")
def _isnan(call: Call, x: Rows) -> Rows:
    return call.builder.is_nan(x)


@reads("nan_to_num")
def _nan_to_num(call: Call, x: Rows, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Rows:
    largest = float(torch.finfo(torch.float32).max)
    filled = call.builder.fill_nan(x, float(nan or 0))
    assert isinstance(filled, Rows)
    return call.builder.function(
        "clip",
        filled,
        float(-largest if neginf is None else neginf),
        float(largest if posinf is None else posinf),
    )


@reads("logical_not", "bitwise_not")
def _not(call: Call, x: Rows) -> Rows:
    _check_bool(call)
    return call.builder.arithmetic("subtract", 1.0, x)


@reads("logical_and", "bitwise_and", "__and")
def _and(call: Call, left: Any, right: Any) -> Rows:
    _check_bool(call)
    return call.builder.arithmetic("multiply", call.operand(left), call.operand(right))


@reads("logical_or", "bitwise_or", "__or")
def _or(call: Call, left: Any, right: Any) -> Rows:
    _check_bool(call)
    return call.builder.arithmetic("maximum", call.operand(left), call.operand(right))


@reads("logical_xor", "bitwise_xor", "__xor")
def _xor(call: Call, left: Any, right: Any) -> Rows:
    _check_bool(call)
    return call.builder.compare("not_equal", call.operand(left), call.operand(right))


def _check_bool(call: Call) -> None:
    if call.given.dtype != torch.bool:
        raise ModelLoadError("expected a condition, true or false")


@reads("where")
def _where(call: Call, condition: Any, left: Any, right: Any) -> Rows:
    return call.builder.where(call.operand(condition), call.operand(left), call.operand(right))


@reads("masked_fill")
def _masked_fill(call: Call, x: Any, mask: Any, value: Any) -> Rows:
    return call.builder.where(call.operand(mask), call.operand(value), call.operand(x))
