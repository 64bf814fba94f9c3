# SPDX-License-Identifier: Apache-2.0
"""`whole`: an entire program in one launch. A Triton program owns a block of rows; between steps its values stay on the
chip, as tiles of CHUNK columns, because Triton cannot slice a tile: a product is then a small unrolled product of
tiles, in fixed K order. Padding columns of tiles always hold zeros: zero weights are not enough, since an infinity in
the row times a zero weight is NaN, in the padding and from there in the whole row."""

import triton
import triton.language as tl

from fused_mlp.kernels.cuda.device.functions import apply, field, finish, normalize

# The kernel asks these of a `whole_steps.WholeStep` as it is compiled.


@triton.constexpr_function
def count(items):
    return len(items)


@triton.constexpr_function
def item(items, i):
    return items[i]


@triton.constexpr_function
def tile_count(STEP):
    return len(STEP.counts)


@triton.constexpr_function
def columns_in(STEP, i):
    return STEP.counts[i]


@triton.constexpr_function
def column_of(STEP, i):
    return STEP.columns[i]


@triton.constexpr_function
def made_by(TILES, i):
    return TILES[i][0]


@triton.constexpr_function
def index_in(TILES, i):
    return TILES[i][1]


@triton.jit
def _gather(values, TILES: tl.constexpr):
    h = ()
    for i in tl.static_range(count(TILES)):
        h = h + (values[made_by(TILES, i)][index_in(TILES, i)],)
    return h


@triton.jit
def _tile_at(h, j):
    """The j-th tile, in a tuple; of no tiles, none. j is known at run time only, so every tile is selected."""
    tile = h[:1]
    for i in tl.static_range(1, len(h)):
        tile = (tl.where(j == i, h[i], tile[0]),)
    return tile


@triton.jit
def _with_tile(h, j, tile):
    """h with its j-th tile replaced."""
    g = ()
    for i in tl.static_range(len(h)):
        g = g + (tl.where(j == i, tile, h[i]),)
    return g


@triton.jit
def _without_padding(tile, COLUMNS: tl.constexpr, CHUNK: tl.constexpr):
    if COLUMNS < CHUNK:
        tile = tl.where((tl.arange(0, CHUNK) < COLUMNS)[None, :], tile, 0.0)
    return tile


@triton.jit
def _weight_tile(w, n, k, ROW: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """The (K, N) tile at row n, column k of a zero-padded (out, in) matrix with rows of ROW elements."""
    return tl.load(w + (n + tl.arange(0, N))[None, :] * ROW + (k + tl.arange(0, K))[:, None])


@triton.jit
def _sum(acc, x_rows, w, live, n, start, stop, ROW: tl.constexpr, N: tl.constexpr, SIZES: tl.constexpr):
    """acc with the products of inputs start to stop added, in order."""
    BLOCK_K: tl.constexpr = field(SIZES, "block_k")
    for k in range(start, stop, BLOCK_K):
        columns = k + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_rows[:, None] + columns[None, :],
            mask=live[:, None] & (columns < field(SIZES, "inputs"))[None, :],
            other=0.0,
        )
        weights = _weight_tile(w, n, k, ROW, N, BLOCK_K)
        acc = tl.dot(x.to(w.dtype.element_ty), weights, acc, input_precision=field(SIZES, "precision"))
    return acc


@triton.jit
def _project(x_rows, w, live, h, n, ROW: tl.constexpr, N: tl.constexpr, SIZES: tl.constexpr):
    """N columns of a product, before bias: of the tiles h; or, where there are none, of the input, in a loop over K,
    in parts of PART (see `plans.SUM_PART`), since the input may be wider than what fits."""
    IN: tl.constexpr = field(SIZES, "inputs")
    PART: tl.constexpr = field(SIZES, "part")
    CHUNK: tl.constexpr = field(SIZES, "chunk")
    acc = tl.zeros((field(SIZES, "block_m"), N), tl.float32)
    if len(h) == 0:
        if IN <= PART:
            acc = _sum(acc, x_rows, w, live, n, 0, IN, ROW, N, SIZES)
        else:
            for part in range(0, IN, PART):
                zero = tl.zeros((field(SIZES, "block_m"), N), tl.float32)
                stop = tl.minimum(part + PART, IN)
                acc += _sum(zero, x_rows, w, live, n, part, stop, ROW, N, SIZES)
    else:
        for i in tl.static_range(len(h)):
            weights = _weight_tile(w, n, i * CHUNK, ROW, N, CHUNK)
            acc = tl.dot(h[i], weights, acc, input_precision=field(SIZES, "precision"))
    return acc


@triton.jit
def _gated_product(x_rows, w, b, live, h, n, STEP: tl.constexpr, N: tl.constexpr, SIZES: tl.constexpr):
    """N columns with their bias and, if there is one, their gate."""
    ROW: tl.constexpr = field(STEP, "k")
    ROWS: tl.constexpr = field(STEP, "n")
    lane = tl.arange(0, N)
    w += field(STEP, "weights")
    b += field(STEP, "vectors")
    up = _project(x_rows, w, live, h, n, ROW, N, SIZES)
    up += tl.load(b + n + lane)[None, :]
    if field(STEP, "gate") is not None:
        w += ROWS * ROW
        gate = _project(x_rows, w, live, h, n, ROW, N, SIZES)
        gate += tl.load(b + ROWS + n + lane)[None, :]
        up = apply(gate, field(STEP, "gate")) * up
    return up


@triton.jit
def _finish(x, z, STEP: tl.constexpr):
    """The end of a product or of a row pass. z: the tile that x is combined with, in a tuple; empty if it is not."""
    other = x
    if len(z) > 0:
        other = z[0].to(tl.float32)
    return finish(x, other, STEP)


@triton.jit
def _product(x_rows, w, b, live, h, z, STEP: tl.constexpr, SIZES: tl.constexpr):
    """A product into tiles, or several alike. (The loop over tiles and layers runs at run time: unrolled, ptxas holds
    every tile at once and spills; and only in a loop does Triton copy the next weights ahead.)"""
    dtype = w.dtype.element_ty
    BLOCK_M: tl.constexpr = field(SIZES, "block_m")
    CHUNK: tl.constexpr = field(SIZES, "chunk")
    TILES: tl.constexpr = tile_count(STEP)
    LAYERS: tl.constexpr = field(STEP, "layers")
    LAYER_ROWS: tl.constexpr = field(STEP, "n") * (1 if field(STEP, "gate") is None else 2)
    g = ()
    for _ in tl.static_range(TILES):
        g = g + (tl.zeros((BLOCK_M, CHUNK), dtype),)
    for s in range(LAYERS * TILES):
        j = s % TILES
        n = (s // TILES) * LAYER_ROWS + j * CHUNK
        up = _gated_product(x_rows, w, b, live, h, n, STEP, CHUNK, SIZES)
        g = _with_tile(g, j, _finish(up, _tile_at(z, j), STEP).to(dtype))
        if LAYERS > 1:
            read = h
            h = ()
            for i in tl.static_range(TILES):
                made = _without_padding(g[i], columns_in(STEP, i), CHUNK)
                h = h + (tl.where(j == TILES - 1, made, read[i]),)
    h = ()
    for i in tl.static_range(TILES):
        h = h + (_without_padding(g[i], columns_in(STEP, i), CHUNK),)
    return h


@triton.jit
def _row_pass(h, z, b, dtype: tl.constexpr, STEP: tl.constexpr, CHUNK: tl.constexpr):
    b += field(STEP, "vectors")
    lane = tl.arange(0, CHUNK)
    tiles = ()
    for i in tl.static_range(tile_count(STEP)):
        tiles = tiles + (h[i].to(tl.float32),)
    if field(STEP, "norm") != "":
        tiles = normalize(tiles, field(STEP, "counts"), field(STEP, "norm"), field(STEP, "eps"))
    g = ()
    for i in tl.static_range(tile_count(STEP)):
        x = tiles[i]
        if field(STEP, "weight"):
            x = x * tl.load(b + i * CHUNK + lane)[None, :]
        if field(STEP, "bias"):
            x = x + tl.load(b + field(STEP, "n") + i * CHUNK + lane)[None, :]
        x = _without_padding(_finish(x, z[i : i + 1], STEP), columns_in(STEP, i), CHUNK)
        if field(STEP, "rounded"):
            x = x.to(dtype)
        g = g + (x,)
    return g


@triton.jit
def _load(x_rows, live, dtype: tl.constexpr, STEP: tl.constexpr, CHUNK: tl.constexpr):
    lane = tl.arange(0, CHUNK)
    h = ()
    for i in tl.static_range(tile_count(STEP)):
        inside = live[:, None] & (lane < columns_in(STEP, i))[None, :]
        x = tl.load(x_rows[:, None] + (column_of(STEP, i) + lane)[None, :], mask=inside, other=0.0)
        h = h + (x.to(dtype),)
    return h


@triton.jit
def _store(h, y_rows, live, STEP: tl.constexpr, CHUNK: tl.constexpr):
    lane = tl.arange(0, CHUNK)
    for i in tl.static_range(tile_count(STEP)):
        inside = live[:, None] & (lane < columns_in(STEP, i))[None, :]
        tl.store(y_rows[:, None] + (column_of(STEP, i) + lane)[None, :], h[i].to(tl.float32), mask=inside)


@triton.jit
def _stream(x_rows, w, b, y_rows, live, h, STEP: tl.constexpr, SIZES: tl.constexpr):
    """A product into the results: a loop over N, since the output may be wider than what fits."""
    OUT: tl.constexpr = columns_in(STEP, 0)
    N: tl.constexpr = field(STEP, "block")
    NORM: tl.constexpr = field(STEP, "norm")
    BLOCK_M: tl.constexpr = field(SIZES, "block_m")
    y_rows += column_of(STEP, 0)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for n in range(0, OUT, N):
        columns = n + tl.arange(0, N)
        y = _gated_product(x_rows, w, b, live, h, n, STEP, N, SIZES)
        y = apply(y, field(STEP, "function"))
        inside = live[:, None] & (columns < OUT)[None, :]
        if NORM != "" and OUT <= N:
            y = normalize((y,), field(STEP, "counts"), NORM, 0.0)[0]
        tl.store(y_rows[:, None] + columns[None, :], y, mask=inside)
        if NORM != "" and OUT > N:
            # Running maximum and sum; the logits wait in y for the second sweep.
            y = tl.where((columns < OUT)[None, :], y, float("-inf"))
            new_top = tl.maximum(top, tl.max(y, 1))
            # While a row has shown nothing but -inf its sum is 0; -inf - (-inf) would make it NaN.
            shift = tl.where(new_top == float("-inf"), 0.0, new_top)
            total = total * tl.exp(top - shift) + tl.sum(tl.exp(y - shift[:, None]), 1)
            top = new_top
    if NORM != "" and OUT > N:
        # The sweep reads what other threads of this program wrote.
        tl.debug_barrier()
        for n in range(0, OUT, N):
            columns = n + tl.arange(0, N)
            inside = live[:, None] & (columns < OUT)[None, :]
            y = tl.load(y_rows[:, None] + columns[None, :], mask=inside, other=0.0) - top[:, None]
            if NORM == "softmax":
                y = tl.exp(y) / total[:, None]
            else:
                y = y - tl.log(total)[:, None]
            tl.store(y_rows[:, None] + columns[None, :], y, mask=inside)


@triton.jit(do_not_specialize=["rows"])  # one binary for every batch size
def whole_kernel(x_ptr, w_ptr, b_ptr, y_ptr, rows, STEPS: tl.constexpr, SIZES: tl.constexpr):
    """x: (rows, inputs) float32, y: (rows, outputs) float32. w and b: as `packing.pack_whole` lays them out. STEPS:
    those of `whole_steps`, unrolled; a value is a tuple of tiles."""
    BLOCK_M: tl.constexpr = field(SIZES, "block_m")
    CHUNK: tl.constexpr = field(SIZES, "chunk")
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = row < rows
    x_rows = x_ptr + row * field(SIZES, "inputs")
    y_rows = y_ptr + row * field(SIZES, "outputs")
    values = ()
    for i in tl.static_range(count(STEPS)):
        h = _gather(values, field(item(STEPS, i), "source"))
        z = _gather(values, field(item(STEPS, i), "other"))
        if field(item(STEPS, i), "kind") == "product":
            h = _product(x_rows, w_ptr, b_ptr, live, h, z, item(STEPS, i), SIZES)
        elif field(item(STEPS, i), "kind") == "row":
            h = _row_pass(h, z, b_ptr, w_ptr.dtype.element_ty, item(STEPS, i), CHUNK)
        elif field(item(STEPS, i), "kind") == "load":
            h = _load(x_rows, live, w_ptr.dtype.element_ty, item(STEPS, i), CHUNK)
        elif field(item(STEPS, i), "kind") == "store":
            _store(h, y_rows, live, item(STEPS, i), CHUNK)
        else:
            _stream(x_rows, w_ptr, b_ptr, y_rows, live, h, item(STEPS, i), SIZES)
        values = values + (h,)
