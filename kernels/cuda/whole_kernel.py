"""`whole`: an entire MLP in one launch. A program owns a block of rows; between layers its activations stay
on the chip. Hidden widths are padded to one WIDTH, kept as WIDTH / CHUNK tiles of CHUNK columns, because
Triton cannot slice a tile: a layer is then a small unrolled product of tiles, in fixed K order."""

import triton
import triton.language as tl

from fused_mlp.kernels.cuda.activations import activate, softmax_tile


@triton.jit
def _weight_tile(w, n, k, ROW: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """The (K, N) tile at row n, column k of a zero-padded (out, in) matrix with rows of ROW elements."""
    return tl.load(w + (n + tl.arange(0, N))[None, :] * ROW + (k + tl.arange(0, K))[:, None])


@triton.jit
def _from_input(
    x_rows,
    w,
    live,
    n,
    IN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One chunk of the first layer, before bias: a loop over K, since the input may be wider than WIDTH."""
    ROW: tl.constexpr = (IN + BLOCK_K - 1) // BLOCK_K * BLOCK_K
    acc = tl.zeros((BLOCK_M, CHUNK), tl.float32)
    for k in range(0, IN, BLOCK_K):
        columns = k + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_rows[:, None] + columns[None, :], mask=live[:, None] & (columns < IN)[None, :], other=0.0
        )
        acc = tl.dot(
            x.to(w.dtype.element_ty),
            _weight_tile(w, n, k, ROW, CHUNK, BLOCK_K),
            acc,
            input_precision=PRECISION,
        )
    return acc


@triton.jit
def _from_chunks(
    h,
    w,
    n,
    N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """(BLOCK_M, N) columns of a later layer, before bias, from the tiles of the previous one."""
    acc = tl.zeros((BLOCK_M, N), tl.float32)
    for i in tl.static_range(CHUNKS):
        acc = tl.dot(
            h[i], _weight_tile(w, n, i * CHUNK, CHUNK * CHUNKS, N, CHUNK), acc, input_precision=PRECISION
        )
    return acc


@triton.jit
def _with_chunk(h, j, chunk, CHUNKS: tl.constexpr):
    """h with its j-th chunk replaced; j is known at run time only, so every chunk is selected."""
    g = ()
    for i in tl.static_range(CHUNKS):
        g = g + (tl.where(j == i, chunk, h[i]),)
    return g


@triton.jit
def _without_padding(h, TRUE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """h with zeros in the columns from TRUE on, which only padding added. Their zero weights are not enough:
    an infinity in the row times a zero weight is NaN, in the padded column and from there in the whole row."""
    g = ()
    for i in tl.static_range(CHUNKS):
        chunk = h[i]
        if (i + 1) * CHUNK > TRUE:
            chunk = tl.where((tl.arange(0, CHUNK) < TRUE - i * CHUNK)[None, :], chunk, 0.0)
        g = g + (chunk,)
    return g


@triton.jit(do_not_specialize=["rows"])  # one binary for every batch size
def whole_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ACTIVATIONS: tl.constexpr,
    SLOPES: tl.constexpr,
    GATED: tl.constexpr,
    OUTPUT: tl.constexpr,
    OUTPUT_SLOPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """x: (rows, IN) float32, y: (rows, OUT) float32. w and b: as `packing.pack_whole` lays them out. HIDDEN:
    the true widths of the layers that are padded to WIDTH."""
    DEPTH: tl.constexpr = len(ACTIVATIONS)
    CHUNKS: tl.constexpr = WIDTH // CHUNK
    IN_ROW: tl.constexpr = (IN + BLOCK_K - 1) // BLOCK_K * BLOCK_K
    OUT_ROWS: tl.constexpr = (OUT + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    dtype = w_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = row < rows
    lane = tl.arange(0, CHUNK)

    # First layer. (Both loops over j run at run time: unrolled, ptxas holds every tile at once and spills.)
    x_rows = x_ptr + row * IN
    h = ()
    for _ in tl.static_range(CHUNKS):
        h = h + (tl.zeros((BLOCK_M, CHUNK), dtype),)
    for j in range(CHUNKS):
        n = j * CHUNK
        up = (
            _from_input(x_rows, w_ptr, live, n, IN, BLOCK_M, BLOCK_K, CHUNK, PRECISION)
            + tl.load(b_ptr + n + lane)[None, :]
        )
        if GATED[0]:
            gate = _from_input(
                x_rows, w_ptr + WIDTH * IN_ROW, live, n, IN, BLOCK_M, BLOCK_K, CHUNK, PRECISION
            )
            gate += tl.load(b_ptr + WIDTH + n + lane)[None, :]
            up = activate(gate, ACTIVATIONS[0], SLOPES[0]) * up
        else:
            up = activate(up, ACTIVATIONS[0], SLOPES[0])
        h = _with_chunk(h, j, up.to(dtype), CHUNKS)
    h = _without_padding(h, HIDDEN[0], CHUNK, CHUNKS)
    w_ptr += WIDTH * IN_ROW * (2 if GATED[0] else 1)
    b_ptr += WIDTH * (2 if GATED[0] else 1)

    # Hidden layers.
    for layer in tl.static_range(1, DEPTH - 1):
        g = h
        for j in range(CHUNKS):
            n = j * CHUNK
            up = (
                _from_chunks(h, w_ptr, n, CHUNK, BLOCK_M, CHUNK, CHUNKS, PRECISION)
                + tl.load(b_ptr + n + lane)[None, :]
            )
            if GATED[layer]:
                gate = _from_chunks(h, w_ptr + WIDTH * WIDTH, n, CHUNK, BLOCK_M, CHUNK, CHUNKS, PRECISION)
                gate += tl.load(b_ptr + WIDTH + n + lane)[None, :]
                up = activate(gate, ACTIVATIONS[layer], SLOPES[layer]) * up
            else:
                up = activate(up, ACTIVATIONS[layer], SLOPES[layer])
            g = _with_chunk(g, j, up.to(dtype), CHUNKS)
        h = _without_padding(g, HIDDEN[layer], CHUNK, CHUNKS)
        w_ptr += WIDTH * WIDTH * (2 if GATED[layer] else 1)
        b_ptr += WIDTH * (2 if GATED[layer] else 1)

    # Last layer: a loop over N, since the output may be wider than WIDTH.
    LAST: tl.constexpr = DEPTH - 1
    SOFTMAX: tl.constexpr = OUTPUT == "softmax" or OUTPUT == "log_softmax"
    y_rows = y_ptr + row * OUT
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for n in range(0, OUT, BLOCK_N):
        columns = n + tl.arange(0, BLOCK_N)
        y = (
            _from_chunks(h, w_ptr, n, BLOCK_N, BLOCK_M, CHUNK, CHUNKS, PRECISION)
            + tl.load(b_ptr + columns)[None, :]
        )
        if GATED[LAST]:
            gate = _from_chunks(h, w_ptr + OUT_ROWS * WIDTH, n, BLOCK_N, BLOCK_M, CHUNK, CHUNKS, PRECISION)
            gate += tl.load(b_ptr + OUT_ROWS + columns)[None, :]
            y = activate(gate, ACTIVATIONS[LAST], SLOPES[LAST]) * y
        inside = live[:, None] & (columns < OUT)[None, :]
        if not SOFTMAX:
            tl.store(y_rows[:, None] + columns[None, :], activate(y, OUTPUT, OUTPUT_SLOPE), mask=inside)
        elif OUT <= BLOCK_N:
            y = softmax_tile(y, columns < OUT, OUTPUT == "log_softmax")
            tl.store(y_rows[:, None] + columns[None, :], y, mask=inside)
        else:
            # Running maximum and sum; the logits wait in y for the second sweep.
            tl.store(y_rows[:, None] + columns[None, :], y, mask=inside)
            y = tl.where((columns < OUT)[None, :], y, float("-inf"))
            new_top = tl.maximum(top, tl.max(y, 1))
            # While a row has shown nothing but -inf its sum is 0; -inf - (-inf) would make it NaN.
            shift = tl.where(new_top == float("-inf"), 0.0, new_top)
            total = total * tl.exp(top - shift) + tl.sum(tl.exp(y - shift[:, None]), 1)
            top = new_top
    if SOFTMAX and OUT > BLOCK_N:
        # The sweep reads what other threads of this program wrote.
        tl.debug_barrier()
        for n in range(0, OUT, BLOCK_N):
            columns = n + tl.arange(0, BLOCK_N)
            inside = live[:, None] & (columns < OUT)[None, :]
            y = tl.load(y_rows[:, None] + columns[None, :], mask=inside, other=0.0) - top[:, None]
            if OUTPUT == "softmax":
                y = tl.exp(y) / total[:, None]
            else:
                y = y - tl.log(total)[:, None]
            tl.store(y_rows[:, None] + columns[None, :], y, mask=inside)
