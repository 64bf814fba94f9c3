# SPDX-License-Identifier: Apache-2.0
"""`layered`: a product in one launch, with what follows it in the epilogue: bias, function, combination with another
value, function; then a norm or softmax, if a tile holds whole rows. A gated product computes both projections and
function(gate) * up in that one launch."""

import triton
import triton.language as tl

from fused_mlp.kernels.cuda.device.functions import apply, await_launch, finish, normalize, rounded


@triton.jit(do_not_specialize=["rows"])  # one binary for every batch size
def layer_kernel(
    x_ptr,
    z_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    rows,
    IN: tl.constexpr,
    X_AT: tl.constexpr,
    X_ROW: tl.constexpr,
    W_ROW: tl.constexpr,
    N_PADDED: tl.constexpr,
    OUT: tl.constexpr,
    Z_AT: tl.constexpr,
    Z_ROW: tl.constexpr,
    Z_ELEMENT: tl.constexpr,
    Y_AT: tl.constexpr,
    Y_ROW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATE: tl.constexpr,
    FUNCTION: tl.constexpr,
    COMBINE: tl.constexpr,
    SWAPPED: tl.constexpr,
    THEN: tl.constexpr,
    NORM: tl.constexpr,
    EPS: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    LAST: tl.constexpr,
    PRECISION: tl.constexpr,
    PART: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """x: IN columns from X_AT on in rows X_ROW apart; y and z alike, OUT columns. w: (N_PADDED, W_ROW), zero-padded,
    followed by the gate's where GATE, its function, is not None; b: (N_PADDED,) float32, likewise, then weight and
    bias of the norm. z is read where COMBINE is not empty. LAST follows the norm. N_PADDED and W_ROW are multiples of
    BLOCK_N and BLOCK_K, so only x, y and z need masks. Sums are taken in parts of PART (see `plans.SUM_PART`)."""
    blocks = tl.cdiv(rows, BLOCK_M)
    # Neighbouring programs share a weight tile and differ in rows: each weight is read from memory once.
    row = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) // blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = row < rows
    k = tl.arange(0, BLOCK_K)
    x_tile = x_ptr + row[:, None] * X_ROW + X_AT + k[None, :]
    w_tile = w_ptr + n.to(tl.int64)[None, :] * W_ROW + k[:, None]
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    await_launch(OVERLAP)
    if IN <= PART:
        up, gate = add_products(
            up, gate, x_tile, w_tile, live, 0, IN, IN, BLOCK_K, N_PADDED * W_ROW, GATE is not None, PRECISION
        )
    else:
        for part in range(0, IN, PART):
            zero = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            stop = tl.minimum(part + PART, IN)
            a, b = add_products(
                zero,
                zero,
                x_tile,
                w_tile,
                live,
                part,
                stop,
                IN,
                BLOCK_K,
                N_PADDED * W_ROW,
                GATE is not None,
                PRECISION,
            )
            up += a
            gate += b

    end_product(
        up,
        gate,
        row,
        n,
        live,
        z_ptr,
        b_ptr,
        y_ptr,
        N_PADDED,
        OUT,
        Z_AT,
        Z_ROW,
        Z_ELEMENT,
        Y_AT,
        Y_ROW,
        GATE,
        FUNCTION,
        COMBINE,
        SWAPPED,
        THEN,
        NORM,
        EPS,
        WEIGHT,
        BIAS,
        LAST,
    )


@triton.jit
def end_product(
    up,
    gate,
    row,
    n,
    live,
    z_ptr,
    b_ptr,
    y_ptr,
    N_PADDED: tl.constexpr,
    OUT: tl.constexpr,
    Z_AT: tl.constexpr,
    Z_ROW: tl.constexpr,
    Z_ELEMENT: tl.constexpr,
    Y_AT: tl.constexpr,
    Y_ROW: tl.constexpr,
    GATE: tl.constexpr,
    FUNCTION: tl.constexpr,
    COMBINE: tl.constexpr,
    SWAPPED: tl.constexpr,
    THEN: tl.constexpr,
    NORM: tl.constexpr,
    EPS: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    LAST: tl.constexpr,
):
    """What follows the sums of a product, and the store. Arguments are those of `layer_kernel`."""
    up += tl.load(b_ptr + n)[None, :]
    b_ptr += N_PADDED
    if GATE is not None:
        gate += tl.load(b_ptr + n)[None, :]
        b_ptr += N_PADDED
        up = apply(gate, GATE) * up
    inside = live[:, None] & (n < OUT)[None, :]
    z = up
    if COMBINE != "":
        z = rounded(
            tl.load(z_ptr + row[:, None] * Z_ROW + Z_AT + n[None, :], mask=inside, other=0.0), Z_ELEMENT
        )
    up = finish(up, z, FUNCTION, COMBINE, SWAPPED, THEN)
    if NORM != "":
        tl.static_assert(up.shape[1] >= OUT, "the tile must hold whole rows: use row_kernel")
        up = normalize((up,), (OUT,), NORM, EPS)[0]
    if WEIGHT:
        up = up * tl.load(b_ptr + n)[None, :]
    if BIAS:
        up = up + tl.load(b_ptr + N_PADDED + n)[None, :]
    up = apply(up, LAST)
    y_tile = y_ptr + row[:, None] * Y_ROW + Y_AT + n[None, :]
    tl.store(y_tile, up.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_products(
    up,
    gate,
    x_tile,
    w_tile,
    live,
    start,
    stop,
    inputs,
    BLOCK_K: tl.constexpr,
    GATE_AT: tl.constexpr,
    GATED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """up and gate with the products of inputs start to stop added, in order. From `inputs` on there are none."""
    k = tl.arange(0, BLOCK_K)
    dtype = w_tile.dtype.element_ty
    for at in range(start, stop, BLOCK_K):
        x = tl.load(x_tile + at, mask=live[:, None] & (at + k < inputs)[None, :], other=0.0).to(dtype)
        up = tl.dot(x, tl.load(w_tile + at), up, input_precision=PRECISION)
        if GATED:
            gate = tl.dot(x, tl.load(w_tile + GATE_AT + at), gate, input_precision=PRECISION)
    return up, gate
