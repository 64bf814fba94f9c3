# SPDX-License-Identifier: Apache-2.0
"""Functions that a GPU computes approximately. The result is as far off as the PTX manual allows, in a direction that
depends on the operands' bits only: what must hold on every GPU is then tried with more error than any has. Results
that float32 holds exactly (exp2 of 3, x / 1) are exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.ptx import arithmetic
from tests.support.ptx.errors import UnknownInstruction
from tests.support.ptx.machine import Step, where
from tests.support.ptx.parsing import Instruction

# The largest relative errors of the manual. (Of lg2 between 1/2 and 2 it is absolute.)
EX2, LG2, RCP, RSQRT, SQRT, TANH = 2.0**-22, 2.0**-22, 2.0**-23, 2.0**-22.9, 2.0**-23, 2.0**-11
DIV_ULPS = 2


def _direction(*operands: np.ndarray) -> np.ndarray:
    """Between -1 and 1, by a hash of the bits."""
    mixed = np.uint32(0)
    for operand in operands:
        mixed = (operand.view(np.uint32) ^ mixed) * np.uint32(2654435761)
        mixed = mixed ^ (mixed >> np.uint32(15))
    return mixed.astype(np.float64) / 2.0**31 - 1.0


def blurred(exact: np.ndarray, error: float | np.ndarray, *operands: np.ndarray) -> np.ndarray:
    """exact: float64. error: relative."""
    rounded = exact.astype(np.float32)
    kept = (rounded == exact) | ~np.isfinite(rounded) | (np.abs(exact) < arithmetic.TINY)
    return np.where(kept, rounded, (exact * (1 + error * _direction(*operands))).astype(np.float32))


def _approximate(function: Callable[[np.ndarray], np.ndarray], error: float) -> Callable[[Instruction], Step]:
    def rule(instruction: Instruction) -> Step:
        if instruction.parts[-1] != "f32":
            raise UnknownInstruction(where(instruction))
        if "approx" not in instruction.parts:  # .rn
            return arithmetic.elementwise(
                instruction, lambda x: function(x.astype(np.float64)).astype(np.float32)
            )
        return arithmetic.elementwise(
            instruction, lambda x: blurred(function(x.astype(np.float64)), error, x)
        )

    return rule


def _log2(instruction: Instruction) -> Step:
    def log2(x: np.ndarray) -> np.ndarray:
        exact = np.log2(x.astype(np.float64))
        near = (x > 0.5) & (x < 2)
        relative = np.where(near, LG2 / np.maximum(np.abs(exact), 1e-30), LG2)
        return blurred(exact, relative, x)

    return arithmetic.elementwise(instruction, log2)


def _divide(instruction: Instruction) -> Step:
    if instruction.opcode not in ("div.full.f32", "div.approx.f32", "div.full.ftz.f32"):
        return arithmetic.RULES["div"](instruction)

    def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = np.broadcast_arrays(a, b)
        exact = a.astype(np.float64) / b
        rounded = exact.astype(np.float32)
        ulp = np.spacing(np.abs(rounded)).astype(np.float64)
        relative = DIV_ULPS * ulp / np.where(exact == 0, 1.0, np.abs(exact))
        return blurred(exact, relative, np.ascontiguousarray(a), np.ascontiguousarray(b))

    return arithmetic.elementwise(instruction, divide)


RULES: dict[str, Callable[[Instruction], Step]] = {
    "ex2": _approximate(np.exp2, EX2),
    "lg2": _log2,
    "rcp": _approximate(lambda x: 1.0 / x, RCP),
    "sqrt": _approximate(np.sqrt, SQRT),
    "rsqrt": _approximate(lambda x: 1.0 / np.sqrt(x), RSQRT),
    "tanh": _approximate(np.tanh, TANH),
    "div": _divide,
}
