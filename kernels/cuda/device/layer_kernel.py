# SPDX-License-Identifier: Apache-2.0
"""`layered`: a product in one launch, with what follows it in the epilogue: bias, function, combination with another
value, function; then a norm or softmax, if a tile holds whole rows. A gated product computes both projections and
function(gate) * up in that one launch."""

import triton
import triton.language as tl

from fused_mlp.kernels.cuda.device.functions import apply, await_launch, field, finish, normalize, rounded


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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    PART: tl.constexpr,
    OVERLAP: tl.constexpr,
    END: tl.constexpr,
):
    """x: IN columns from X_AT on in rows X_ROW apart. w: (padded, W_ROW), zero-padded, then the gate's if there
    is one; b: (padded,) float32, likewise, then weight and bias of the norm. END: an `Epilogue`, which says where y and
    z are. Its `padded` and W_ROW are multiples of BLOCK_N and BLOCK_K, so only x, y and z need masks. Sums are taken in
    parts of PART (see `plans.SUM_PART`)."""
    blocks = tl.cdiv(rows, BLOCK_M)
    # Neighbouring programs share a weight tile and differ in rows: each weight is read from memory once.
    row = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) // blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = row < rows
    k = tl.arange(0, BLOCK_K)
    x_tile = x_ptr + row[:, None] * X_ROW + X_AT + k[None, :]
    w_tile = w_ptr + n.to(tl.int64)[None, :] * W_ROW + k[:, None]
    GATE_AT: tl.constexpr = field(END, "padded") * W_ROW
    GATED: tl.constexpr = field(END, "gated")
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    await_launch(OVERLAP)
    if IN <= PART:
        up, gate = add_products(up, gate, x_tile, w_tile, live, 0, IN, IN, BLOCK_K, GATE_AT, GATED, PRECISION)
    else:
        for part in range(0, IN, PART):
            a = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            stop = tl.minimum(part + PART, IN)
            a, b = add_products(
                a, a, x_tile, w_tile, live, part, stop, IN, BLOCK_K, GATE_AT, GATED, PRECISION
            )
            up += a
            gate += b
    end_product(up, gate, row, n, live, z_ptr, b_ptr, y_ptr, END)


@triton.jit
def end_product(up, gate, row, n, live, z_ptr, b_ptr, y_ptr, END: tl.constexpr):
    """Runs the epilogue of a product and stores the result."""
    OUT: tl.constexpr = field(END, "out")
    PADDED: tl.constexpr = field(END, "padded")
    up += tl.load(b_ptr + n)[None, :]
    b_ptr += PADDED
    if field(END, "gated"):
        gate += tl.load(b_ptr + n)[None, :]
        b_ptr += PADDED
        up = apply(gate, field(END, "gate")) * up
    inside = live[:, None] & (n < OUT)[None, :]
    z = up
    if field(END, "combine") != "":
        z_tile = z_ptr + row[:, None] * field(END, "z_row") + field(END, "z_at") + n[None, :]
        z = rounded(tl.load(z_tile, mask=inside, other=0.0), field(END, "z_element"))
    up = finish(up, z, END)
    if field(END, "norm") != "":
        tl.static_assert(up.shape[1] >= OUT, "the tile must hold whole rows: use row_kernel")
        up = normalize((up,), (OUT,), field(END, "norm"), field(END, "eps"))[0]
    if field(END, "weight"):
        up = up * tl.load(b_ptr + n)[None, :]
    if field(END, "bias"):
        up = up + tl.load(b_ptr + PADDED + n)[None, :]
    up = apply(up, field(END, "last"))
    y_tile = y_ptr + row[:, None] * field(END, "y_row") + field(END, "y_at") + n[None, :]
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
