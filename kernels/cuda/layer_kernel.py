"""`layered`: one launch per layer, with bias and activation in the epilogue; a gated layer computes both
projections and act(gate) * up in that one launch. Rows too wide for one tile get their softmax from a
second kernel."""

import triton
import triton.language as tl

from fused_mlp.kernels.cuda.activations import activate, softmax_tile


@triton.jit(do_not_specialize=["rows"])  # one binary for every batch size
def layer_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    rows,
    IN: tl.constexpr,
    X_ROW: tl.constexpr,
    W_ROW: tl.constexpr,
    N_PADDED: tl.constexpr,
    OUT: tl.constexpr,
    Y_ROW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SLOPE: tl.constexpr,
    GATED: tl.constexpr,
    OUTPUT: tl.constexpr,
    OUTPUT_SLOPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """x: (rows, IN) with rows X_ROW apart, y: (rows, OUT) with rows Y_ROW apart. w: (N_PADDED, W_ROW),
    zero-padded, followed by the gate's when GATED; b: (N_PADDED,) float32, likewise. OUTPUT is what follows
    the last layer. N_PADDED and W_ROW are multiples of BLOCK_N and BLOCK_K, so only x and y need masks."""
    dtype = w_ptr.dtype.element_ty
    blocks = tl.cdiv(rows, BLOCK_M)
    # Neighbouring programs share a weight tile and differ in rows: each weight is read from memory once.
    row = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) // blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = row < rows
    k = tl.arange(0, BLOCK_K)
    x_tile = x_ptr + row[:, None] * X_ROW + k[None, :]
    w_tile = w_ptr + n.to(tl.int64)[None, :] * W_ROW + k[:, None]
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    GATE: tl.constexpr = N_PADDED * W_ROW
    for start in range(0, IN, BLOCK_K):
        x = tl.load(x_tile + start, mask=live[:, None] & (start + k < IN)[None, :], other=0.0).to(dtype)
        up = tl.dot(x, tl.load(w_tile + start), up, input_precision=PRECISION)
        if GATED:
            gate = tl.dot(x, tl.load(w_tile + GATE + start), gate, input_precision=PRECISION)

    up += tl.load(b_ptr + n)[None, :]
    if GATED:
        gate += tl.load(b_ptr + N_PADDED + n)[None, :]
        up = activate(gate, ACTIVATION, SLOPE) * up
    else:
        up = activate(up, ACTIVATION, SLOPE)
    if OUTPUT == "softmax" or OUTPUT == "log_softmax":
        tl.static_assert(OUT <= BLOCK_N, "the tile must hold whole rows: use softmax_kernel")
        up = softmax_tile(up, n < OUT, OUTPUT == "log_softmax")
    else:
        up = activate(up, OUTPUT, OUTPUT_SLOPE)
    y_tile = y_ptr + row[:, None] * Y_ROW + n[None, :]
    tl.store(y_tile, up.to(y_ptr.dtype.element_ty), mask=live[:, None] & (n < OUT)[None, :])


@triton.jit
def softmax_kernel(y_ptr, OUT: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr):
    """(Log-)softmax of y: (rows, OUT) float32 in place, one program per row, for rows of any width."""
    y_row = y_ptr + tl.program_id(0).to(tl.int64) * OUT
    lane = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, OUT, BLOCK):
        top = tl.maximum(
            top,
            tl.load(y_row + start + lane, mask=start + lane < OUT, other=float("-inf")),
            propagate_nan=tl.PropagateNan.ALL,
        )
    peak = tl.max(top, 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, OUT, BLOCK):
        total += tl.exp(tl.load(y_row + start + lane, mask=start + lane < OUT, other=float("-inf")) - peak)
    norm = tl.sum(total, 0)
    for start in range(0, OUT, BLOCK):
        inside = start + lane < OUT
        y = tl.load(y_row + start + lane, mask=inside, other=0.0) - peak
        if LOG:
            y = y - tl.log(norm)
        else:
            y = tl.exp(y) / norm
        tl.store(y_row + start + lane, y, mask=inside)
