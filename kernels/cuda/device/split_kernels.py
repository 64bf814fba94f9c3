# SPDX-License-Identifier: Apache-2.0
"""`split`: a product of a small batch in two launches, with the parts of its sums in programs of their own."""

import triton
import triton.language as tl

from fused_mlp.kernels.cuda.device.functions import await_launch, field
from fused_mlp.kernels.cuda.device.layer_kernel import add_products, end_product


@triton.jit(do_not_specialize=["rows"])
def part_kernel(
    x_ptr,
    w_ptr,
    sums_ptr,
    rows,
    IN: tl.constexpr,
    X_AT: tl.constexpr,
    X_ROW: tl.constexpr,
    W_ROW: tl.constexpr,
    N_PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    PART: tl.constexpr,
    OVERLAP: tl.constexpr,
    GATED: tl.constexpr,
    PARTS: tl.constexpr,
):
    """x and w as in `layer_kernel`, at most BLOCK_M rows; rows of w are padded to whole parts. sums: (rows, PARTS, up
    and gate, N_PADDED) float32."""
    part = tl.program_id(0) % PARTS
    row = tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) // PARTS) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = row < rows
    k = tl.arange(0, BLOCK_K)
    x_tile = x_ptr + row[:, None] * X_ROW + X_AT + k[None, :]
    w_tile = w_ptr + n.to(tl.int64)[None, :] * W_ROW + k[:, None]
    zero = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    start = part * PART
    await_launch(OVERLAP)
    x_tile += start
    w_tile += start
    GATE_AT: tl.constexpr = N_PADDED * W_ROW
    up, gate = add_products(
        zero, zero, x_tile, w_tile, live, 0, PART, IN - start, BLOCK_K, GATE_AT, GATED, PRECISION
    )
    HALVES: tl.constexpr = 2 if GATED else 1
    at = sums_ptr + (row[:, None] * PARTS + part) * (HALVES * N_PADDED) + n[None, :]
    tl.store(at, up, mask=live[:, None])
    if GATED:
        tl.store(at + N_PADDED, gate, mask=live[:, None])


@triton.jit(do_not_specialize=["rows"])
def join_kernel(
    sums_ptr,
    z_ptr,
    b_ptr,
    y_ptr,
    rows,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    OVERLAP: tl.constexpr,
    END: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The sums of `part_kernel` added up in the order of `layer_kernel`, then its epilogue."""
    row = tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = row < rows
    PADDED: tl.constexpr = field(END, "padded")
    GATED: tl.constexpr = field(END, "gated")
    HALVES: tl.constexpr = 2 if GATED else 1
    at = sums_ptr + row[:, None] * (PARTS * HALVES * PADDED) + n[None, :]
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    await_launch(OVERLAP)
    for part in range(PARTS):
        up += tl.load(at + part * (HALVES * PADDED), mask=live[:, None], other=0.0)
        if GATED:
            gate += tl.load(at + part * (HALVES * PADDED) + PADDED, mask=live[:, None], other=0.0)
    end_product(up, gate, row, n, live, z_ptr, b_ptr, y_ptr, END)
