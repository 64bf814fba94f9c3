# SPDX-License-Identifier: Apache-2.0
"""`layered`: what no product's epilogue can do, in one pass over rows of any width: a norm or softmax, weight and bias,
a function, a combination with another value, a function; or a copy. One program per row."""

import triton
import triton.language as tl

from fused_mlp.kernels.cuda.device.functions import await_launch, field, finish, rounded, row_size


@triton.jit
def row_kernel(
    x_ptr,
    z_ptr,
    b_ptr,
    y_ptr,
    X_AT: tl.constexpr,
    X_ROW: tl.constexpr,
    X_ELEMENT: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
    END: tl.constexpr,
):
    """x: the `out` columns of END, an `Epilogue`, from X_AT on, in rows X_ROW apart. b: so many weights and as many
    biases. y may be x: no pass reads what an earlier one wrote."""
    WIDTH: tl.constexpr = field(END, "out")
    NORM: tl.constexpr = field(END, "norm")
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * X_ROW + X_AT
    lane = tl.arange(0, BLOCK)
    await_launch(OVERLAP)
    if NORM == "softmax" or NORM == "log_softmax":
        shift, size = _softmax_size(x_row, WIDTH, BLOCK, X_ELEMENT)
    elif NORM != "":
        shift, size = _norm_size(x_row, WIDTH, BLOCK, X_ELEMENT, NORM, field(END, "eps"))
    for start in range(0, WIDTH, BLOCK):
        at = start + lane
        inside = at < WIDTH
        x = rounded(tl.load(x_row + at, mask=inside, other=0.0), X_ELEMENT)
        if NORM == "softmax":
            x = tl.exp(x - shift) / size
        elif NORM == "log_softmax":
            x = x - shift - tl.log(size)
        elif NORM != "":
            x = (x - shift) / size
        if field(END, "weight"):
            x = x * tl.load(b_ptr + at, mask=inside, other=0.0)
        if field(END, "bias"):
            x = x + tl.load(b_ptr + WIDTH + at, mask=inside, other=0.0)
        z = x
        if field(END, "combine") != "":
            z_row = z_ptr + row * field(END, "z_row") + field(END, "z_at")
            z = rounded(tl.load(z_row + at, mask=inside, other=0.0), field(END, "z_element"))
        x = finish(x, z, END)
        y_row = y_ptr + row * field(END, "y_row") + field(END, "y_at")
        tl.store(y_row + at, x.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_size(x_row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ELEMENT: tl.constexpr):
    """The largest of the row, and the sum of the exponentials relative to it."""
    lane = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        x = rounded(tl.load(x_row + start + lane, mask=start + lane < WIDTH, other=float("-inf")), ELEMENT)
        top = tl.maximum(top, x, propagate_nan=tl.PropagateNan.ALL)
    peak = tl.max(top, 0)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        x = rounded(tl.load(x_row + start + lane, mask=start + lane < WIDTH, other=float("-inf")), ELEMENT)
        sums += tl.exp(x - peak)
    return peak, tl.sum(sums, 0)


@triton.jit
def _norm_size(
    x_row,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ELEMENT: tl.constexpr,
    NORM: tl.constexpr,
    EPS: tl.constexpr,
):
    """The number that the norm subtracts, and its divisor."""
    lane = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    if NORM == "layer":
        for start in range(0, WIDTH, BLOCK):
            sums += rounded(tl.load(x_row + start + lane, mask=start + lane < WIDTH, other=0.0), ELEMENT)
    centre = tl.sum(sums, 0) / WIDTH
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        inside = start + lane < WIDTH
        x = rounded(tl.load(x_row + start + lane, mask=inside, other=0.0), ELEMENT) - centre
        squares += tl.where(inside, x * x, 0.0)
    return centre, row_size(tl.sum(squares, 0), WIDTH, NORM, EPS)
