# SPDX-License-Identifier: Apache-2.0
"""The numeric check every kernel passes before it serves: against float64, its error may be at most twice that of plain
layers in the model's dtype. Both references are computed in numpy: a fused kernel on a CPU needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.kernels.base import Float32, Kernel
from fused_mlp.kernels.error_bound import (
    BENT,
    EXACT,
    FUNCTION_ROUNDINGS,
    PRECISIONS,
    UNIT,
    forward_with_bound,
)
from fused_mlp.kernels.errors import KernelRefuted
from fused_mlp.models import Dtype, Mlp
from fused_mlp.models.program.activations import PRIMITIVES, Floats
from fused_mlp.models.program.evaluation import Arithmetic, evaluate
from fused_mlp.models.program.formula import Formula
from fused_mlp.models.program.inputs import spread_ids
from fused_mlp.models.weights.dtypes import named_dtype, widen
from fused_mlp.models.weights.quantization import Int8Matrix, ReducedMatrix, int8_product

# Batches probed: kernels choose a strategy by rows, and each has to be right. 19 is a few full register blocks
# and a remainder.
PROBE_ROWS = (19, 5, 1)
# The plain layers' largest error is looked for among at least this many outputs, half of them of large rows; and, for
# the rows that the kernel gets, with sums split into parts, which is another order of summation. Found in too few sums
# it can be close to zero by chance: 1 of 13 000 right kernels would be refused in portable C++.
# Before a kernel is refused, the error is therefore looked for among many more outputs, and several times with every
# result off by one more rounding: in a sensitive model (a layer norm of nearly equal values, a quotient near a pole)
# the error differs with the order of summation.
BASELINE_OUTPUTS = 1024
MANY_OUTPUTS = 16 * BASELINE_OUTPUTS
BASELINE_PARTS = (2, 3, 4)
OTHER_ROUNDINGS = 8
FURTHER_ROWS = 13  # at least, that only the plain layers get
# Large rows are that many times as large, and so are their errors: the two kinds are judged apart.
LARGE = 8.0
# How many times as large the error of plain layers on another device may be, which sums in chains of thousands.
LONG_CHAIN = 8.0
# In units of the output: where the plain layers happen to be exact, a kernel that rounds once more must still pass.
FLOOR_ROUNDINGS = 8.0

Rounding = Callable[[Floats], Floats]


def probe_input(mlp: Mlp, outputs: int = BASELINE_OUTPUTS) -> Float32:
    """Deterministic rows that reach both tails of every activation: (rows, in_features). The plain layers get all of
    them, the kernel the first few. Rounded to the model's dtype, so that both start from the same values."""
    rows = max(max(PROBE_ROWS) + FURTHER_ROWS, -(-outputs // min(mlp.spec.output_widths)))
    x = _bell_shaped(rows * mlp.spec.in_features).reshape(rows, -1).copy()
    x[1] = 0.0
    x[_large(rows)] *= LARGE
    x = _round_to(mlp.spec.dtype)(x)
    spread_ids(mlp.spec.record, x)
    return x


def _large(rows: int) -> NDArray[np.bool_]:
    """Which rows are: one of those that the kernel gets, and every second of the others."""
    large = np.zeros(rows, np.bool_)
    large[2] = True
    large[max(PROBE_ROWS) :: 2] = True
    return large


def _bell_shaped(count: int, first: int = 2) -> Float32:
    """Pseudo-random numbers of mean 0 and deviation 1, the same every time; not to be written to."""
    return _kept_bell_shaped(count, first) if count <= _MAX_KEPT else _make_bell_shaped(count, first)


def _make_bell_shaped(count: int, first: int) -> Float32:
    """The sum of the four 16-bit parts of a hash of the index. (Importing `numpy.random` takes longer than checking a
    small model.)"""
    bits = np.arange(first, count + first, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        bits ^= bits >> np.uint64(31)
        bits *= np.uint64(multiplier)
    bits ^= bits >> np.uint64(31)
    pairs = (bits & np.uint64(0x0000FFFF0000FFFF)) + (bits >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF))
    sums = (pairs & np.uint64(0xFFFFFFFF)) + (pairs >> np.uint64(32))
    return (sums.astype(np.float32) - 2 * 65535) * np.float32(3**0.5 / 65536)


_MAX_KEPT = 1 << 14
# Many models of one shape are checked one after the other.
_kept_bell_shaped = lru_cache(16)(_make_bell_shaped)


def check_against_float64(kernel: Kernel, mlp: Mlp, eager: Callable[[], Kernel] | None = None) -> None:
    """Raise KernelRefuted when the kernel's largest error is more than twice that of plain layers, in ordinary rows or
    in large ones, in any output: each has a scale of its own. `eager` makes the plain layers of the kernel's own device
    where that is not the CPU: they may sum in longer chains than numpy does. It is asked only before a refusal. Weights
    in fewer bits that run in bfloat16 are held to bfloat16."""
    if mlp.reduced and kernel.spec.dtype == "bfloat16":
        mlp = mlp.rounded_to("bfloat16")
    try:
        # The strictest and the cheapest: among fewer outputs, in one order of summation, the plain layers' largest
        # error is smaller. A kernel that passes would pass what follows.
        _check(kernel, mlp, 0, ())
    except KernelRefuted:
        try:
            _check(kernel, mlp, BASELINE_OUTPUTS)
        except KernelRefuted:
            _check(kernel, mlp, MANY_OUTPUTS, other_roundings=OTHER_ROUNDINGS, eager=eager)


def _check(
    kernel: Kernel,
    mlp: Mlp,
    outputs: int,
    split_into: tuple[int, ...] = BASELINE_PARTS,
    *,
    other_roundings: int = 0,
    eager: Callable[[], Kernel] | None = None,
) -> None:
    x = probe_input(mlp, outputs)
    most = max(PROBE_ROWS)
    computed = []
    for rows in PROBE_ROWS:
        y = np.full((rows, mlp.spec.out_features), np.nan, np.float32)
        kernel.run(x[:rows], y)
        computed.append(y)
    there = None if eager is None else np.empty((len(x), mlp.spec.out_features), np.float32)
    if eager is not None and there is not None:
        eager().run(x, there)
    tf32, int8 = kernel.describe().dtype == "tf32", kernel.describe().dtype == "int8"
    after, operand = _round_to(mlp.spec.dtype), _round_to_tf32 if tf32 else _keep
    # Half precision may overflow. There is no error to compare with then.
    with np.errstate(all="ignore"):
        exact = evaluate(mlp, x.astype(np.float64))
        plain = evaluate(mlp, x, _PlainLayers(after, operand, int8=int8))
        comparable = np.isfinite(exact) & np.isfinite(plain)
        error = np.abs(plain - exact)
        others = [_PlainLayers(after, operand, parts, int8) for parts in split_into]
        unit = PRECISIONS[mlp.spec.dtype].stored
        others += [_OtherRoundings(after, operand, 1 + index, unit, int8) for index in range(other_roundings)]
        for arithmetic in others:
            again = np.abs(evaluate(mlp, x[:most], arithmetic) - exact[:most])
            error[:most] = np.fmax(error[:most], np.where(np.isfinite(again), again, 0.0))
        if other_roundings:  # and where nothing is known of a right kernel, nothing can be wrong
            bound = forward_with_bound(mlp, x[:most], PRECISIONS[kernel.describe().dtype])
            comparable[:most] &= np.isfinite(bound.error)
        for output in mlp.spec.outputs:
            columns = mlp.spec.columns(output.name)
            for large in (False, True):
                counted = comparable[:, columns] & (_large(len(x)) == large)[:, None]
                floor = (
                    FLOOR_ROUNDINGS * PRECISIONS[mlp.spec.dtype].stored * _largest(exact[:, columns], counted)
                )
                usual = _largest(error[:, columns], counted)
                if there is not None:
                    finite = counted & np.isfinite(there[:, columns])
                    longest = _largest((there - exact)[:, columns], finite)
                    usual = max(usual, min(longest, LONG_CHAIN * usual))  # a broken device excuses nothing
                allowed = 2.0 * usual + floor
                for y in computed:
                    found = _largest((y - exact[: len(y)])[:, columns], counted[: len(y)])
                    if not found <= allowed:  # NaN must fail too
                        place = f", output {output.name!r}" if len(mlp.spec.outputs) > 1 else ""
                        raise KernelRefuted(
                            f"{kernel.describe().backend} kernel disagrees with the float64 reference at {len(y)} "
                            f"rows{place}: largest error {found:.3g}, allowed {allowed:.3g}"
                        )


def _keep(values: Floats) -> Floats:
    return values


class _PlainLayers(Arithmetic):
    """As eager layers compute: `after` rounds every result that they write to memory, `operand` both factors of every
    product; the sums of products are split into `parts`. `int8`: rows are quantized where the weights are."""

    def __init__(self, after: Rounding, operand: Rounding, parts: int = 1, int8: bool = False) -> None:
        self._after, self._operand, self._parts, self._int8 = after, operand, parts, int8
        self._exact = after is _keep  # operators in between round no more than the function does

    def stored(self, values: Floats) -> Floats:
        return self._after(values)

    def product(self, x: Floats, weight: Floats, reduced: ReducedMatrix | None) -> Floats:
        if isinstance(reduced, Int8Matrix) and self._int8:
            return int8_product(x, reduced)
        left, right = self._operand(x), self._operand(weight)
        size = -(-x.shape[1] // self._parts)
        result: Floats = left[:, :size] @ right[:, :size].T
        for start in range(size, x.shape[1], size):
            result += left[:, start : start + size] @ right[:, start : start + size].T
        return result

    def function(self, formula: Formula, x: Floats) -> Floats:
        """Operator by operator."""
        if self._exact:
            return formula(x)
        registers = [x]
        for each in formula.instructions:
            operands: list[Any] = [
                registers[at] if at >= 0 else x.dtype.type(formula.constants[-1 - at]) for at in each.operands
            ]
            result = PRIMITIVES[each.op](*operands, *map(x.dtype.type, each.numbers))
            if len(operands) == 1 and each.op not in EXACT:
                result = self._computed(result, operands[0])
            registers.append(self.stored(result))
        return registers[-1]

    def _computed(self, values: Floats, of: Floats) -> Floats:
        """A function of numbers."""
        return values

    def normalized(self, kind: str, x: Floats, eps: Any) -> Floats:
        """A scale and a shift, as torch computes a layer norm."""
        if kind != "layer":
            return super().normalized(kind, x, eps)
        mean = x.mean(axis=1, keepdims=True)
        centred = x - mean
        scale = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + eps)
        result: Floats = x * scale - self._between(mean * scale)
        return result

    def _between(self, values: Floats) -> Floats:
        """The value of an intermediate result that is not written to memory."""
        return values


class _OtherRoundings(_PlainLayers):
    """Every result is off by another rounding: what a sensitive model makes of it is no error of a kernel."""

    def __init__(self, after: Rounding, operand: Rounding, parts: int, unit: float, int8: bool) -> None:
        super().__init__(after, operand, parts, int8)
        self._unit, self._drawn = np.float32(unit), parts << 20
        self._exact = False

    def stored(self, values: Floats) -> Floats:
        return super().stored(self._off(values))

    def _between(self, values: Floats) -> Floats:
        return self._off(values)

    def _computed(self, values: Floats, of: Floats) -> Floats:
        size = FUNCTION_ROUNDINGS / 4 * np.float32(UNIT) * (np.abs(values) + np.minimum(np.abs(of), BENT))
        result: Floats = values + size * self._noise(values)
        return result

    def _off(self, values: Floats) -> Floats:
        result: Floats = values * (1 + self._unit * self._noise(values))
        return result

    def _noise(self, like: Floats) -> Floats:
        self._drawn += like.size
        return np.clip(_bell_shaped(like.size, self._drawn), -1, 1).reshape(like.shape)


def _round_to(dtype: Dtype) -> Rounding:
    if dtype == "float32":
        return _keep
    target = named_dtype(dtype)
    return lambda values: widen(values.astype(target))


def _round_to_tf32(values: Floats) -> Floats:
    """To nearest. Adding half of the last kept bit to the integer image carries into the exponent where it must."""
    bits = np.ascontiguousarray(values).view(np.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(np.float32)


def _largest(difference: NDArray[Any], where: NDArray[np.bool_]) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(np.max(np.abs(difference), initial=0.0, where=where))
