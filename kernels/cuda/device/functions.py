# SPDX-License-Identifier: Apache-2.0
"""Formulas, combinations and norms as Triton device functions: float32 in, float32 out. Only operations that Triton's
interpreter runs too (no libdevice by name), so that every one of them is tested on a CPU. Comparisons are written so
that NaN comes out as NaN, as in eager (`tl.maximum` alone would swallow it)."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _tanh(x):
    """(1 - e) / (1 + e) with e = exp(-2|x|) never overflows but cancels near zero, where the odd series takes
    over: at |x| < 0.25 its first dropped term is below 1e-8 of the result."""
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.053968254 + s * 0.021869488))))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0.0, -far, far))


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _softplus(x):
    """max(x, 0) + log(1 + e) with e = exp(-|x|): no overflow. 1 + e rounds, and the quotient corrects for that."""
    e = tl.exp(-tl.abs(x))
    grown = 1.0 + e
    log = tl.where(grown == 1.0, e, tl.log(grown) * e / tl.where(grown == 1.0, 1.0, grown - 1.0))
    return tl.where(x < 0.0, 0.0, x) + log


@triton.jit
def _bounded_expm1(x):
    """For x <= 0: exp(x) - 1, by series where it would cancel. Fewer registers than `_expm1`, for elu."""
    near = x * (
        1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668 + x * (0.0083333333 + x * 0.0013888889))))
    )
    return tl.where(x > -0.25, near, tl.exp(x) - 1.0)


@triton.jit
def _expm1(x):
    """(e + 1) * 2^n - 1 with e = exp(r) - 1 and x = n log(2) + r, which does not cancel. Of half of it, since 2^128 is
    infinite where the result is not yet."""
    x = tl.where(x < -20.0, -20.0, tl.where(x > 89.0, 89.0, x))
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 0.693359375) + n * 2.12194440e-4
    q = 0.5000000057 + r * (0.1666654656 + r * (0.04166629407 + r * (0.008366239788 + r * 0.001394580605)))
    e = r + r * r * q
    half = tl.exp2(n - 1.0)
    far = 2.0 * (e * half + (half - 0.5))
    # Near zero without the errors of exp2, and with the sign of zero.
    return tl.where(n == 0.0, tl.where(x == 0.0, x, e), far)


@triton.jit
def _log1p(x):
    """2 atanh(x / (2 + x)) by series where the sum would round the digits of x away."""
    s = x / (2.0 + x)
    z = s * s
    q = 0.3333333509 + z * (0.1999965102 + z * (0.1430310277 + z * (0.1076796528 + z * 0.1195868354)))
    near = 2.0 * s + 2.0 * s * z * q
    return tl.where(tl.abs(x - 0.25) < 0.75, near, tl.log(1.0 + x))


@triton.jit
def _exp(x):
    """exp(r) * 2^n with x = n log(2) + r: `tl.exp` alone, exp2(x * log2(e)), loses digits as |x| grows. 2^n in two
    factors, since 2^128 is infinite where the result is not yet."""
    x = tl.where(x < -110.0, -110.0, tl.where(x > 90.0, 90.0, x))
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    half = tl.floor(n * 0.5)
    r = (x - n * 0.693359375) + n * 2.12194440e-4
    return tl.exp(r) * tl.exp2(half) * tl.exp2(n - half)


# Triton knows nothing of formulas, steps and epilogues: what the kernels ask of them is computed as they are compiled.


@triton.constexpr_function
def field(STEP, name):
    return getattr(STEP, name)


@triton.constexpr_function
def instruction_count(FORMULA):
    return len(FORMULA.instructions)


@triton.constexpr_function
def constant_count(FORMULA):
    return len(FORMULA.constants)


@triton.constexpr_function
def constant(FORMULA, k):
    return FORMULA.constants[k]


@triton.constexpr_function
def operation(FORMULA, i):
    return FORMULA.instructions[i].op


@triton.constexpr_function
def register(FORMULA, i, k):
    """The place of an instruction's k-th operand among the constants, x and the results so far, in this order."""
    at = FORMULA.instructions[i].operands[k]
    return at + len(FORMULA.constants) if at >= 0 else -1 - at


@triton.constexpr_function
def number(FORMULA, i, k):
    return FORMULA.instructions[i].numbers[k]


@triton.jit
def apply(x, FORMULA: tl.constexpr):
    """FORMULA is a `models.program.formula.Formula`, whose instructions are unrolled at compile time."""
    values = ()
    for k in tl.static_range(constant_count(FORMULA)):
        values = values + (constant(FORMULA, k),)
    values = values + (x,)
    for i in tl.static_range(instruction_count(FORMULA)):
        values = values + (_instruction(values, FORMULA, i),)
    return values[len(values) - 1]


@triton.jit
def _instruction(values, FORMULA: tl.constexpr, i: tl.constexpr):
    OP: tl.constexpr = operation(FORMULA, i)
    x = values[register(FORMULA, i, 0)]
    if (
        OP == "add"
        or OP == "subtract"
        or OP == "multiply"
        or OP == "divide"
        or OP == "maximum"
        or OP == "minimum"
    ):
        x = combine(x, values[register(FORMULA, i, 1)], OP)
    elif OP == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    elif OP == "leaky_relu":
        x = tl.where(x < 0.0, x * number(FORMULA, i, 0), x)
    elif OP == "gelu":
        x = 0.5 * x * (1.0 + tl.math.erf(x * 0.70710678))
    elif OP == "gelu_tanh":
        x = 0.5 * x * (1.0 + _tanh(0.79788456 * (x + 0.044715 * x * x * x)))
    elif OP == "silu":
        x = x * _sigmoid(x)
    elif OP == "tanh":
        x = _tanh(x)
    elif OP == "sigmoid":
        x = _sigmoid(x)
    elif OP == "elu":
        x = tl.where(x < 0.0, number(FORMULA, i, 0) * _bounded_expm1(tl.where(x < 0.0, x, 0.0)), x)
    elif OP == "softplus":
        scaled = x * number(FORMULA, i, 0)
        x = tl.where(scaled > number(FORMULA, i, 1), x, _softplus(scaled) / number(FORMULA, i, 0))
    elif OP == "hardswish":
        six = tl.where(x < -3.0, 0.0, tl.where(x > 3.0, 6.0, x + 3.0))
        x = x * six * 0.16666667
    elif OP == "mish":
        # tanh(log(1 + n)) with n = exp(x) is n(n + 2) / (n(n + 2) + 2); past 20 it is 1 in float32.
        n = tl.exp(tl.where(x > 20.0, 20.0, x))
        x = x * (n * (n + 2.0)) / (n * (n + 2.0) + 2.0)
    elif OP == "clip":
        x = tl.where(x < number(FORMULA, i, 0), number(FORMULA, i, 0), x)
        x = tl.where(x > number(FORMULA, i, 1), number(FORMULA, i, 1), x)
    elif OP == "abs":
        x = tl.abs(x)
    elif OP == "exp":
        x = _exp(x)
    elif OP == "log":
        x = tl.log(x)
    elif OP == "sqrt":
        x = tl.sqrt_rn(x)
    elif OP == "sin":
        x = tl.sin(x)
    elif OP == "cos":
        x = tl.cos(x)
    elif OP == "log1p":
        x = _log1p(x)
    elif OP == "expm1":
        x = _expm1(x)
    elif OP == "sign":
        x = tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0))
    else:
        tl.static_assert(OP == "erf", "unknown function")
        x = tl.math.erf(x)
    return x


@triton.jit
def combine(a, b, OP: tl.constexpr):
    """One of `spec.Combination`."""
    if OP == "add":
        a = a + b
    elif OP == "subtract":
        a = a - b
    elif OP == "multiply":
        a = a * b
    elif OP == "divide":
        a = a / b
    elif OP == "maximum":
        a = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        tl.static_assert(OP == "minimum", "unknown combination")
        a = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return a


@triton.jit
def finish(x, z, STEP: tl.constexpr):
    """The end of a product or of a row pass, of an `Epilogue` or a `WholeStep`; z is read where it combines."""
    x = apply(x, field(STEP, "function"))
    COMBINE: tl.constexpr = field(STEP, "combine")
    if COMBINE != "":
        if field(STEP, "swapped"):
            x = combine(z, x, COMBINE)
        else:
            x = combine(x, z, COMBINE)
    return apply(x, field(STEP, "then"))


@triton.jit
def await_launch(OVERLAP: tl.constexpr):
    """Lets the next launch begin, whose programs wait here too, and waits until all before this one are done and what
    they wrote is there. Before it, a program may read nothing but tensors of the model, and write nothing."""
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def rounded(x, ELEMENT: tl.constexpr):
    """The input as the model gets it: in its dtype. Everything else is stored in it already."""
    if ELEMENT == "fp16":
        x = x.to(tl.float16)
    elif ELEMENT == "bf16":
        x = x.to(tl.bfloat16)
    return x.to(tl.float32)


@triton.jit
def normalize(tiles, WIDTHS: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr):
    """A row of values that several tiles hold, as float32: (rows, columns) each, of which the first WIDTHS[i] columns
    are real. A norm or softmax over all of them; padding counts for nothing, and holds anything afterwards."""
    TOTAL: tl.constexpr = total(WIDTHS)
    ROWS: tl.constexpr = tiles[0].shape[0]
    h = ()
    if NORM == "softmax" or NORM == "log_softmax":
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        for i in tl.static_range(len(WIDTHS)):
            top = tl.maximum(top, tl.max(_inside(tiles[i], WIDTHS[i], float("-inf")), 1))
        norm = tl.zeros((ROWS,), tl.float32)
        for i in tl.static_range(len(WIDTHS)):
            norm += tl.sum(tl.exp(_inside(tiles[i], WIDTHS[i], float("-inf")) - top[:, None]), 1)
        for i in tl.static_range(len(WIDTHS)):
            if NORM == "softmax":
                h = h + (tl.exp(tiles[i] - top[:, None]) / norm[:, None],)
            else:
                h = h + (tiles[i] - top[:, None] - tl.log(norm)[:, None],)
    else:
        centre = tl.zeros((ROWS,), tl.float32)
        if NORM == "layer":
            for i in tl.static_range(len(WIDTHS)):
                centre += tl.sum(_inside(tiles[i], WIDTHS[i], 0.0), 1)
            centre = centre / TOTAL
        squares = tl.zeros((ROWS,), tl.float32)
        for i in tl.static_range(len(WIDTHS)):
            centred = _inside(tiles[i] - centre[:, None], WIDTHS[i], 0.0)
            squares += tl.sum(centred * centred, 1)
        size = row_size(squares, TOTAL, NORM, EPS)
        for i in tl.static_range(len(WIDTHS)):
            h = h + ((tiles[i] - centre[:, None]) / size[:, None],)
    return h


@triton.constexpr_function
def total(WIDTHS):
    return sum(WIDTHS)


@triton.jit
def row_size(squares, WIDTH: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr):
    """The divisor of a norm, given the sum of squares."""
    if NORM == "l2":
        size = tl.maximum(tl.sqrt_rn(squares), EPS, propagate_nan=tl.PropagateNan.ALL)
    else:
        size = tl.sqrt_rn(squares / WIDTH + EPS)
    return size


@triton.jit
def _inside(tile, WIDTH: tl.constexpr, other):
    """The tile with `other` in the columns from WIDTH on."""
    if tile.shape[1] > WIDTH:
        tile = tl.where((tl.arange(0, tile.shape[1]) < WIDTH)[None, :], tile, other)
    return tile
