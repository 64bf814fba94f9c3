# SPDX-License-Identifier: Apache-2.0
"""Error bounds of functions of one value and of two values combined: the range of each primitive over the interval
that its input may be in, and the roundings of a kernel's own arithmetic. A formula is bounded instruction by
instruction, so that its errors grow as those of a kernel do. numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from fused_mlp.kernels.bounded import FLOAT32_LARGEST, UNIT, Bounded, Float64, Precision, store
from fused_mlp.models.activations import PRIMITIVES
from fused_mlp.models.formula import Formula

# A kernel's own function: at most this many roundings, of its result and of its input up to BENT, beyond which every
# activation is zero, one or linear. Near zero 1 + erf(x) and the like cancel, hence the input.
FUNCTION_ROUNDINGS = 16
BENT = 8.0
_DIVISION_ROUNDINGS = 4  # a multiplication with the reciprocal
EXACT = frozenset({"relu", "clip", "abs", "sign"})
_NEVER_NEGATIVE = frozenset({"relu", "abs", "exp", "sqrt", "sigmoid"})
# Where a function that falls and then rises is lowest; the others only rise.
_LOWEST_AT: Mapping[str, float] = MappingProxyType(
    {
        "gelu": -0.7517915,
        "gelu_tanh": -0.7524614,
        "silu": -1.2784645,
        "hardswish": -1.5,
        "mish": -1.1924448,
        "abs": 0.0,
        "leaky_relu": 0.0,  # where its slope is negative
        "elu": 0.0,
    }
)


def bound_formula(formula: Formula, x: Bounded, precision: Precision) -> Bounded:
    """Each instruction's result is rounded as one that is stored: eager operators do."""
    registers = [x]
    constants = [
        Bounded(np.asarray(value), np.asarray(UNIT * abs(value)), value >= 0) for value in formula.constants
    ]
    for each in formula.instructions:
        operands = [registers[at] if at >= 0 else constants[-1 - at] for at in each.operands]
        if len(operands) == 2:
            result = combine(each.op, operands[0], operands[1])
        else:
            result = _function(each.op, each.numbers, operands[0])
        registers.append(store(result, precision))
    return registers[-1]


def combine(op: str, a: Bounded, b: Bounded) -> Bounded:
    """Without the rounding of the result."""
    value: Float64 = PRIMITIVES[op](a.value, b.value)
    known = np.isfinite(a.error) & np.isfinite(b.error)
    match op:
        case "add" | "subtract":
            error = a.error + b.error
        case "multiply":
            error = np.abs(a.value) * b.error + a.error * b.size
        case "divide":
            # a'/b' - a/b = ((a' - a) - a/b (b' - b)) / b'
            smallest = np.abs(b.value) - b.error
            error = (a.error + np.abs(value) * b.error) / smallest
            error = error + _DIVISION_ROUNDINGS * UNIT * (np.abs(value) + error)
            known &= smallest > 1 / FLOAT32_LARGEST
        case _:  # maximum, minimum
            error = np.maximum(a.error, b.error)
    both = a.nonnegative and b.nonnegative
    never_negative = {
        "subtract": False,
        "multiply": both or a is b,
        "maximum": a.nonnegative or b.nonnegative,
    }.get(op, both)
    return Bounded(value, np.where(known, error, np.inf), never_negative)


def _function(name: str, numbers: tuple[float, ...], x: Bounded) -> Bounded:
    """From the lowest and the highest value over the interval that x may be in."""

    def compute(at: Float64) -> Float64:
        result: Float64 = PRIMITIVES[name](at, *numbers)
        return result

    value, low, high = compute(x.value), x.low, x.high
    known = np.isfinite(x.error)
    if name in ("sin", "cos"):
        top, bottom = _wave(low, high, 0.25 if name == "sin" else 0.0)
    else:
        if name == "softplus":  # it jumps at its threshold, which a kernel may round to either side of
            low, high = low - 4 * UNIT * x.size, high + 4 * UNIT * x.size
        ends = [
            compute(low),
            compute(high),
            *(compute(np.clip(at, low, high)) for at in _bends(name, numbers)),
        ]
        top, bottom = np.maximum.reduce(ends), np.minimum.reduce(ends)
    error = np.maximum(top - value, value - bottom)
    if name == "clip":
        error = error + UNIT * max(map(abs, numbers))  # they are rounded to float32
    elif name not in EXACT:
        size = np.abs(value) + error
        match name:
            case "sqrt":
                known &= low >= 0
            case "log":
                known &= low > 0
                size = size + np.minimum(x.size, BENT)
            case "log1p":
                known &= low > -1
                size = size + np.minimum(x.size, BENT)
            case "exp":  # a kernel may round log2(e) x
                size = size * (1 + x.size / 4)
            case "sin" | "cos":  # or the multiple of pi that it takes away
                size = size + x.size
                known &= FUNCTION_ROUNDINGS * UNIT * size < 1
            case "erf":  # torch's is 1 - a polynomial, also near zero
                size = size + 1
            case _:
                size = size + np.minimum(x.size, BENT)
        error = error + FUNCTION_ROUNDINGS * UNIT * size
    never_negative = name in _NEVER_NEGATIVE or (name == "clip" and min(numbers) >= 0)
    return Bounded(value, np.where(known, error, np.inf), never_negative)


def _bends(name: str, numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Where a function may be higher or lower than on both sides."""
    if name == "softplus":
        beta, threshold = numbers
        at = threshold / beta if beta else 0.0
        return at, float(np.nextafter(at, np.inf)), float(np.nextafter(at, -np.inf))
    return (_LOWEST_AT[name],) if name in _LOWEST_AT else ()


def _wave(low: Float64, high: Float64, phase: float) -> tuple[Float64, Float64]:
    """The highest and the lowest of cos(x - phase turns) over [low, high]."""
    start, stop = low / (2 * np.pi) - phase, high / (2 * np.pi) - phase
    ends = np.cos(2 * np.pi * start), np.cos(2 * np.pi * stop)
    top = np.where(np.floor(stop) > np.floor(start), 1.0, np.maximum(*ends))
    bottom = np.where(np.floor(stop - 0.5) > np.floor(start - 0.5), -1.0, np.minimum(*ends))
    return top, bottom
