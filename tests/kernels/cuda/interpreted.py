"""Run by test_interpreter.py in a process with TRITON_INTERPRET=1: executes the real kernels in Triton's
interpreter in the dtype named, and prints one JSON object per case."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import get_args

import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernels.cuda import backend, selection
from kernels.cuda.architectures import ARCHITECTURES
from kernels.cuda.plans import precision_of
from kernels.cuda.rule import candidate_tiles
from kernels.cuda.tiles import Tile
from kernels.cuda.triton_programs import LayeredProgram, WholeProgram
from models import Activation, Mlp, MlpSpec
from models.spec import OutputActivation
from models.weights import TORCH_DTYPES
from tests.kernels.cuda.cpu_runtime import CpuRuntime
from tests.kernels.cuda.random_models import make_mlp, make_spec

CPU = torch.device("cpu")
WIDTHS = (1, 3, 17, 100, 129, 250)
ACTIVATIONS = get_args(Activation)
OUTPUTS = (*ACTIVATIONS, "softmax", "log_softmax")
assert set(OUTPUTS) == {name for part in get_args(OutputActivation) for name in get_args(part)}


def run(mlp: Mlp, tile: Tile, x: torch.Tensor) -> torch.Tensor:
    program = (WholeProgram if tile.strategy == "whole" else LayeredProgram)(mlp, tile, CPU)
    rows = x.shape[0]
    # NaN: whatever a kernel reads without having written it shows.
    workspace = program.workspace(rows, lambda shape, dtype: torch.full(shape, torch.nan, dtype=dtype))
    y = torch.full((rows, mlp.spec.out_features), torch.nan)
    program.enqueue(x, y, rows, workspace)
    return y


def tiles(spec: MlpSpec, *, all_blocks: bool = True) -> list[Tile]:
    """As on sm_80; without all_blocks, only the smallest block of each strategy."""
    found = candidate_tiles(spec, ARCHITECTURES[0])
    return found if all_blocks else [tile for tile in found if tile.block_m == 16]


def compare(spec: MlpSpec, rows: int, *, all_blocks: bool = True) -> Iterator[dict[str, object]]:
    """Against float64: at most twice eager's error in the same dtype, plus a few roundings of the result
    (eager may happen to be exact, as it is for one column)."""
    mlp = make_mlp(spec)
    dtype = TORCH_DTYPES[spec.dtype]
    x = torch.randn(rows, spec.in_features, generator=torch.Generator().manual_seed(1))
    x[0] *= 6  # into the tails of the activations
    rounded = x.to(dtype)
    with torch.inference_mode():
        exact = mlp.to_torch().double()(rounded.double())
        eager = mlp.to_torch()(rounded).double()
    scale = exact.abs().max().item()
    allowed = 2 * (eager - exact).abs().max().item() + 4 * torch.finfo(dtype).eps * scale
    for tile in tiles(spec, all_blocks=all_blocks):
        error = (run(mlp, tile, x).double() - exact).abs().max().item()
        name = f"{spec.summary()} {spec.dtype} bias={spec.layers[0].bias} rows={rows} {tile.label}"
        yield {"case": name, "ok": error <= allowed, "error": error, "allowed": allowed}


def widths(dtype: str) -> Iterator[dict[str, object]]:
    for index, width in enumerate(WIDTHS):
        gated, bias = (index % 2 == 0, False), index % 3 != 0
        yield from compare(make_spec((width, width, width), "gelu", gated=gated, bias=bias, dtype=dtype), 5)
        wide = (300, width, 300)  # first layer loops over K, last over N
        yield from compare(make_spec(wide, "relu", output="softmax", dtype=dtype), 9, all_blocks=False)


def depths(dtype: str) -> Iterator[dict[str, object]]:
    pattern = (17, 100, 3, 64, 129, 1, 33, 16, 50)
    for depth in range(1, 9):
        gated = [depth % 3 == 0 and index % 2 == 0 for index in range(depth)]
        yield from compare(make_spec(pattern[: depth + 1], "silu", gated=gated, dtype=dtype), 18)


def activations(dtype: str) -> Iterator[dict[str, object]]:
    for name in ACTIVATIONS:
        yield from compare(make_spec((20, 30, 5), name, dtype=dtype), 17, all_blocks=False)
        gated = make_spec((20, 30, 5), name, gated=True, dtype=dtype)
        yield from compare(gated, 17, all_blocks=False)
    for name in OUTPUTS:
        yield from compare(make_spec((20, 30, 70), "tanh", output=name, dtype=dtype), 17, all_blocks=False)
        yield from compare(make_spec((20, 30, 7), "tanh", output=name, dtype=dtype), 2, all_blocks=False)


def served(dtype: str) -> Iterator[dict[str, object]]:
    """The whole way a model takes at load: candidates, self-check, invariance, choice; then batches."""
    InterpreterBuilder.create_dot = sum_in_fixed_order
    selection.BUCKETS = (16, 32)  # the interpreter is slow
    spec = make_spec((9, 20, 5), "silu", output="softmax", dtype=dtype)
    mlp = make_mlp(spec)
    runtime = CpuRuntime()
    runtime.architecture = ARCHITECTURES[0]
    backend._runtime = lambda: runtime
    kernel = backend.build_triton(mlp)
    info = kernel.describe()
    chosen = info.strategy == "whole/16" and "whole/16 1.0/1.0; " in info.reason
    yield {"case": f"chosen: {info}", "ok": chosen and "layered/16 1.0/1.0" in info.reason}
    x = torch.randn(70, 9, generator=torch.Generator().manual_seed(3)).numpy()
    y = kernel(x)
    yield {
        "case": "same bits alone",
        "ok": all((kernel(x[i : i + 1]) == y[i]).all() for i in (0, 31, 32, 69)),
    }


def sum_in_fixed_order(
    builder: object, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_: object
) -> object:
    """A product of tiles as a GPU takes it: each element on its own, in K order. The interpreter's is
    numpy's, whose BLAS sums a row in an order that depends on the row's position in the tile."""
    total = d.data.copy()
    for k in range(a.data.shape[1]):
        total += a.data[:, k, None].astype(total.dtype) * b.data[None, k, :].astype(total.dtype)
    return TensorHandle(total, d.dtype.scalar)


def invariance(dtype: str) -> Iterator[dict[str, object]]:
    """Each row alone, then in batches that do and do not fill blocks, at other positions: the same bits."""
    InterpreterBuilder.create_dot = sum_in_fixed_order
    spec = make_spec((37, 50, 50, 70), "gelu", gated=(True, False, False), output="softmax", dtype=dtype)
    mlp = make_mlp(spec)
    x = torch.randn(130, 37, generator=torch.Generator().manual_seed(2))
    for tile in tiles(spec):
        whole = run(mlp, tile, x)
        for rows in (1, 15, 16, 17, 65, 129):
            part = run(mlp, tile, x[130 - rows :].contiguous())
            same = torch.equal(part.view(torch.int32), whole[130 - rows :].view(torch.int32))
            yield {"case": f"{spec.dtype} rows={rows} of 130 {tile.label}", "ok": same}


def poison(dtype: str) -> Iterator[dict[str, object]]:
    """NaN and infinity come out as in eager, and stay in their own row."""
    for name in ("relu", "leaky_relu", "hardswish", "relu6", "elu", "mish", "softplus"):
        spec = make_spec((8, 20, 4), name, output="softmax", dtype=dtype)
        mlp = make_mlp(spec)
        x = torch.ones(18, 8)
        x[3, 2] = torch.nan
        clean = torch.ones(18, 8)
        for tile in tiles(spec):
            y, expected = run(mlp, tile, x), run(mlp, tile, clean)
            others = [row for row in range(18) if row != 3]
            ok = bool(y[3].isnan().all()) and torch.equal(y[others], expected[others])
            yield {"case": f"{name} {precision_of(spec, tf32=False)} {tile.label}", "ok": ok}


if __name__ == "__main__":
    for group in (widths, depths, activations, poison, invariance, served):
        for result in group(sys.argv[1]):
            print(json.dumps({"group": group.__name__, **result}))
