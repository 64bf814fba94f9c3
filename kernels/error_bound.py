# SPDX-License-Identifier: Apache-2.0
"""What float64 makes of rows, and how far from that a right kernel may be. The rows are computed several times, each
time with every result off by as much as a kernel's rounding may put it off, up or down at random: what these results
are apart is what rounding explains. Every step is covered by computing it; only those that add up many numbers say here
how much rounding that is. numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models import Mlp
from fused_mlp.models.program.activations import PRIMITIVES
from fused_mlp.models.program.arithmetic import Arithmetic, Tensors
from fused_mlp.models.program.evaluation import tensors_of
from fused_mlp.models.program.formula import Formula
from fused_mlp.models.program.spec import INPUT, Step
from fused_mlp.models.program.steps import Bag, Dot, Reduce, Softmax
from fused_mlp.models.weights.quantization import SMALLEST_RANGE, Int8Matrix, ReducedMatrix

Float64 = NDArray[np.float64]

UNIT = 2.0**-24  # unit roundoff of float32, in which every kernel adds up products and computes functions
# A kernel's own function: at most this many roundings, of its result and of its input up to BENT, beyond which every
# activation is zero, one or linear. Near zero 1 + erf(x) and the like cancel, hence the input.
FUNCTION_ROUNDINGS = 16
BENT = 8.0
EXACT = frozenset({"relu", "clip", "abs", "sign", "maximum", "minimum"})
# Roundings to the kernel's dtype inside a sum or a norm: factors, partial sums, what eager operators store in between.
_STORED_ROUNDINGS = 4
# The first draw is off upwards everywhere, the second downwards: steps with the same weights are off alike.
_DRAWS = 24
# The allowed error, in units of the farthest draw. The last step alone is off by no more than one; errors that come
# through earlier steps add up at random in the draws, and a kernel's own may line up a little better.
_ALLOWED = 4.0


@dataclass(frozen=True)
class Precision:
    """How a kernel rounds. `product`: unit roundoff of factors; `stored`: of what it writes to memory between steps;
    `smallest`: below it numbers may become zero; `largest`: above it they may become infinite; `rows`: what quantizing
    the rows of an int8 product changes, in units of a row's largest value."""

    product: float = UNIT
    stored: float = UNIT
    smallest: float = 2.0**-126
    largest: float = 2.0**124  # 1/16 of the largest float32: hardswish computes 6 x on its way
    rows: float = 0.0


# By the dtype of `Kernel.describe()`.
PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "float32": Precision(),
        "tf32": Precision(product=2.0**-11),
        "bfloat16": Precision(product=2.0**-8, stored=2.0**-8),
        "float16": Precision(product=2.0**-11, stored=2.0**-11, smallest=2.0**-24, largest=2.0**15),
        "int8": Precision(rows=(0.5 + 2.0**-15) / 127),
    }
)


@dataclass(frozen=True)
class Bounded:
    """value: (rows, width), what float64 computes; error: of the same shape, the largest of a right kernel. Infinite
    for a row in which a right kernel may overflow, or that is not finite."""

    value: Float64
    error: Float64

    def admits(self, y: NDArray[Any]) -> NDArray[np.bool_]:
        """y: (rows, width), what a kernel computed. Whether each may be the result of a right one."""
        with np.errstate(invalid="ignore"):
            return np.isinf(self.error) | (np.abs(y - self.value) <= self.error)


def forward_with_bound(mlp: Mlp, x: NDArray[np.float32], precision: Precision) -> Bounded:
    """x: (rows, in_features), as a caller sent them. `precision` of the kernel, which may differ from the model's.
    All outputs side by side, as kernels write them."""
    arithmetic = _Rounding(precision, len(x))
    with np.errstate(all="ignore"):  # overflow is looked for at each step
        values = {INPUT: _given(mlp, x, arithmetic)}
        for step in mlp.spec.steps:
            sources = [values[source] for source in step.sources]
            made = _compute(mlp, step, sources, arithmetic)
            values[step.name] = (
                arithmetic.stored(made) if mlp.spec.kinds_by_name[step.name] == "float" else made
            )
        made = np.concatenate([values[output.value] for output in mlp.spec.outputs], axis=1)
        exact, *drawn = made.reshape(_DRAWS + 1, len(x), -1)
        error = _ALLOWED * np.abs(np.stack(drawn) - exact).max(axis=0) + precision.smallest
    unknown = arithmetic.unknown.reshape(_DRAWS + 1, -1, 1).any(axis=0)
    return Bounded(exact, np.where(unknown | ~np.isfinite(error), np.inf, error))


def _given(mlp: Mlp, x: NDArray[np.float32], arithmetic: _Rounding) -> Float64:
    """The rows, once for each draw. Words with ids are not rounded; NaN in them is none."""
    given = np.tile(x.astype(np.float64), (_DRAWS + 1, 1))
    floats = np.ones(x.shape[1], np.bool_)
    for part in mlp.spec.record:
        floats[part.start : part.stop] = part.field.kind == "float"
    given[:, floats] = arithmetic.stored(given[:, floats])
    return given


def _compute(mlp: Mlp, step: Step, sources: list[Float64], arithmetic: _Rounding) -> Float64:
    tensors = tensors_of(mlp, step, np.dtype(np.float64))
    if step.op == "divide":
        arithmetic.check_divisor(sources[1])
    made: Float64 = step.evaluate(sources, tensors, arithmetic)
    if isinstance(step, Softmax):
        count, log = made.shape[1], step.op == "log_softmax"
        size = (FUNCTION_ROUNDINGS + count) * UNIT * (log + np.abs(made))
        if log:  # the logarithm of the sum, which torch keeps in half precision where the model is
            size += 2 * arithmetic.precision.stored * np.log(count)
        made = arithmetic.off(made, size)
    elif isinstance(step, (Bag, Dot, Reduce)):
        made = arithmetic.summed(made, _sizes(step, sources, tensors), _summands(step, sources[0].shape[1]))
    return made


def _sizes(step: Bag | Dot | Reduce, sources: list[Float64], tensors: Tensors) -> Float64:
    """The sum of the magnitudes of the summands."""
    ids = isinstance(step, Bag)
    sizes = [source if ids and source is sources[0] else np.abs(source) for source in sources]
    absolute = tensors._replace(table=lambda name, rows: np.abs(tensors.table(name, rows)))
    result: Float64 = step.evaluate(sizes, absolute, Arithmetic())
    return result


def _summands(step: Bag | Dot | Reduce, width: int) -> int:
    if isinstance(step, Bag):
        return width
    return step.groups if isinstance(step, Reduce) and step.over == "vectors" else width // step.groups


class _Rounding(Arithmetic):
    """The first of the draws is exact, the others are off by what a kernel may be off. `unknown`: the rows in which one
    may overflow, or has no number."""

    def __init__(self, precision: Precision, rows: int) -> None:
        self.precision = precision
        self.unknown = np.zeros((_DRAWS + 1) * rows, np.bool_)
        self._rows = rows
        self._random = np.random.default_rng()  # no caller knows what is drawn

    def off(self, values: Float64, size: Any) -> Float64:
        """size: how far, of whatever broadcasts to the values."""
        noise = self._random.uniform(-1.0, 1.0, values.shape)
        # The other half lies in between, for functions that rise and fall again.
        half = (_DRAWS // 2 + 1) * self._rows
        noise[:half] = np.sign(noise[:half])
        for draw, sign in enumerate((0.0, 1.0, -1.0)):
            noise[draw * self._rows : (draw + 1) * self._rows] = sign
        result: Float64 = values + noise * size
        return result

    def stored(self, values: Float64) -> Float64:
        """Rounding changes no sign, and zero stays zero."""
        self._check(values)
        size = np.abs(values)
        return self.off(values, self.precision.stored * size + np.minimum(self.precision.smallest, size))

    def product(self, x: Float64, weight: Float64, reduced: ReducedMatrix | None) -> Float64:
        if isinstance(reduced, Int8Matrix):
            x = self.off(x, self.precision.rows * np.abs(x).max(axis=1, keepdims=True) + SMALLEST_RANGE)
        return self.summed(
            x @ weight.T, np.abs(x) @ np.abs(weight).T, x.shape[1], np.abs(x).sum(1, keepdims=True)
        )

    def summed(self, total: Float64, sizes: Float64, count: int, inputs: Any = 0.0) -> Float64:
        """A sum of n products, in any order, is off by at most n + 1 roundings of the sum of their magnitudes."""
        self._check(sizes)  # partial sums may overflow where the whole does not
        roundings = (count + 2) * UNIT + _STORED_ROUNDINGS * max(
            self.precision.product, self.precision.stored
        )
        roundings /= 1 - min(roundings, 0.5)  # roundings of roundings
        return self.off(total, roundings * sizes + self.precision.smallest * (count + inputs))

    def function(self, formula: Formula, x: Float64) -> Float64:
        """Operator by operator: each result is rounded as one that is stored, as eager ones are."""
        registers = [x]
        for each in formula.instructions:
            operands: list[Any] = [
                registers[at] if at >= 0 else formula.constants[-1 - at] for at in each.operands
            ]
            registers.append(self.stored(self._called(each.op, operands, each.numbers)))
        return registers[-1]

    def _called(self, op: str, operands: list[Any], numbers: tuple[float, ...]) -> Float64:
        """A kernel may round multiples of its operand on the way: log2(e) x, 2 pi n."""
        compute = PRIMITIVES[op]
        if op == "divide":
            self.check_divisor(operands[1])
        if len(operands) == 2 or op in EXACT:
            numbers_off = UNIT * max(map(abs, numbers), default=0.0)  # they are rounded to float32
            return (
                self.off(compute(*operands, *numbers), numbers_off)
                if op == "clip"
                else compute(*operands, *numbers)
            )
        (x,) = operands
        made: Float64 = compute(self.off(x, 4 * UNIT * np.abs(x)), *numbers)
        size = np.abs(made) + (1.0 if op == "erf" else 0.0 if op == "sqrt" else np.minimum(np.abs(x), BENT))
        rounded = self.off(made, FUNCTION_ROUNDINGS * UNIT * size)
        return np.where(rounded * made < 0, 0.0, rounded)  # its own error changes no sign

    def normalized(self, kind: str, x: Float64, eps: Any) -> Float64:
        count, stored = x.shape[1], self.precision.stored
        roundings = (count + 8) * UNIT
        self._check((x * x).sum(axis=1, keepdims=True))
        if kind == "layer":
            size = np.abs(x)
            mean = self.off(x.mean(axis=1, keepdims=True), roundings * size.mean(axis=1, keepdims=True))
            x = self.off(x - mean, 2 * UNIT * size)
        squares = (x * x).sum(axis=1, keepdims=True)
        squares = np.maximum(self.off(squares, roundings * squares + count * 2.0**-126), 0.0)
        length = np.maximum(np.sqrt(squares), eps) if kind == "l2" else np.sqrt(squares / count + eps)
        return self.off(x / length, (8 * UNIT + _STORED_ROUNDINGS * stored) * np.abs(x / length))

    def check_divisor(self, values: Float64 | float) -> None:
        """One that may be zero makes the row unknown: no number of draws finds how large a quotient can be."""
        if isinstance(values, np.ndarray):
            exact, *drawn = values.reshape(_DRAWS + 1, self._rows, -1)
            spread = np.abs(np.stack(drawn) - exact).max(axis=0)
            self.unknown[: self._rows] |= ~(np.abs(exact) > _ALLOWED * spread).all(axis=1)

    def _check(self, values: Float64) -> None:
        self.unknown |= ~(np.abs(values) < self.precision.largest).all(axis=1)
