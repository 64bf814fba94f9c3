# SPDX-License-Identifier: Apache-2.0
"""Run by test_interpreter.py in a process with TRITON_INTERPRET=1: executes the real kernels in Triton's
interpreter in the dtype named, and prints one JSON object per case: all of them, or the first few of each group."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from itertools import islice, product
from typing import get_args

import torch
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle, _patch_lang

from fused_mlp.kernels.base import Float32, Kernel, KernelInfo
from fused_mlp.kernels.cuda import backend
from fused_mlp.kernels.cuda.check.models import Sketch
from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES
from fused_mlp.kernels.cuda.planning.plans import precision_of
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles
from fused_mlp.kernels.cuda.planning.tiles import Tile
from fused_mlp.kernels.cuda.running import selection
from fused_mlp.kernels.cuda.running.cublas import CublasProgram
from fused_mlp.kernels.cuda.running.triton_programs import Binary, TritonProgram
from fused_mlp.kernels.errors import KernelRefuted
from fused_mlp.kernels.selfcheck import BASELINE_OUTPUTS, check_against_float64
from fused_mlp.models import Activation, LayerWeights, Mlp, MlpSpec
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES
from fused_mlp.models.importers.torch.writing import make_module
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.inputs import spread_ids
from fused_mlp.models.program.spec import OutputActivation
from tests.kernels.cuda.cpu_runtime import CpuRuntime
from tests.kernels.cuda.idioms import written
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.lookup_programs import RANKERS
from tests.support.random_programs import FUNCTIONS, random_program

CPU = torch.device("cpu")
WIDTHS = (1, 3, 17, 100, 129, 250)
PROGRAMS = 36
RELATIVE = 1e-5  # of float32 softmax; in TF32, more
ACTIVATIONS = get_args(Activation)
OUTPUTS = (*ACTIVATIONS, "softmax", "log_softmax")
assert set(OUTPUTS) == {name for part in get_args(OutputActivation) for name in get_args(part)}


patch_once = cache(_patch_lang)


def call_device_function(self: InterpretedFunction, *arguments: object, **named: object) -> object:
    """As the interpreter does it, which patches `triton.language` again for every call: most of its time. Launches do
    so too, and what functions of its own library patch besides is never taken back."""
    patch_once(self.fn)
    return self.rewrite()(*arguments, **named)


def run(mlp: Mlp, tile: Tile, x: torch.Tensor) -> torch.Tensor:
    program = TritonProgram(mlp, tile, CPU)
    rows = x.shape[0]
    # NaN: whatever a kernel reads without having written it shows.
    workspace = program.workspace(rows, lambda shape, dtype: torch.full(shape, torch.nan, dtype=dtype))
    y = torch.full((rows, mlp.spec.out_features), torch.nan)
    program.enqueue(x, y, rows, workspace)
    return y


def tiles(spec: MlpSpec, *, all_blocks: bool = True) -> list[Tile]:
    """As on sm_80; without all_blocks, only the smallest block of each strategy. In Triton's interpreter, tf32x3 is
    ieee."""
    found = [tile for tile in candidate_tiles(spec, ARCHITECTURES[0]) if tile.precision != "tf32x3"]
    return found if all_blocks else [tile for tile in found if tile.block_m == 16]


def exact_results(mlp: Mlp, x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(evaluate(mlp, x.double().numpy()))


def eager_results(mlp: Mlp, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return make_module(mlp, joined=True)(x)


def allowance(mlp: Mlp, x: torch.Tensor, exact: torch.Tensor) -> float:
    eager = eager_results(mlp, x).double()
    return 2 * (eager - exact).abs().max().item() + 4 * torch.finfo(x.dtype).eps * exact.abs().max().item()


def compare(
    spec: MlpSpec, rows: int, *, all_blocks: bool = True, title: str = ""
) -> Iterator[dict[str, object]]:
    """Against float64: at most twice eager's error in the same dtype, plus a few roundings of the result
    (eager may happen to be exact, as it is for one column). Eager's over enough rows not to be small by luck."""
    mlp = make_mlp(spec)
    dtype = TORCH_DTYPES[spec.dtype]
    sample = max(rows, BASELINE_OUTPUTS // spec.out_features)
    x = torch.randn(sample, spec.in_features, generator=torch.Generator().manual_seed(1))
    x[::rows] *= 6  # into the tails of the activations
    exact = exact_results(mlp, x.to(dtype))
    allowed = allowance(mlp, x.to(dtype), exact)
    for tile in tiles(spec, all_blocks=all_blocks):
        error = (run(mlp, tile, x[:rows]).double() - exact[:rows]).abs().max().item()
        name = f"{title or spec.summary()} {spec.dtype} rows={rows} {tile.label}"
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


def batches(dtype: str) -> Iterator[dict[str, object]]:
    """Rows that fill blocks of 16, 32, 64 and 128, that do not, and that overflow into the next one."""
    for rows in (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 130):
        yield from compare(make_spec((7, 20, 5), "gelu", gated=(True, False), dtype=dtype), rows)
    wide = make_spec((70, 20, 70), "relu", output="softmax", dtype=dtype)  # loops over K and N
    for rows in (16, 65, 130):
        yield from compare(wide, rows)


def activations(dtype: str) -> Iterator[dict[str, object]]:
    for name in ACTIVATIONS:
        yield from compare(make_spec((20, 30, 5), name, dtype=dtype), 17, all_blocks=False)
        gated = make_spec((20, 30, 5), name, gated=True, dtype=dtype)
        yield from compare(gated, 17, all_blocks=False)
    for name in OUTPUTS:
        yield from compare(make_spec((20, 30, 70), "tanh", output=name, dtype=dtype), 17, all_blocks=False)
        yield from compare(make_spec((20, 30, 7), "tanh", output=name, dtype=dtype), 2, all_blocks=False)


def formulas(dtype: str) -> Iterator[dict[str, object]]:
    """Every function of a formula, after a product and on its own."""
    for text in FUNCTIONS:
        sketch = Sketch(20, dtype)
        h = sketch.linear(sketch.function("input", text), 30, text)
        yield from compare(sketch.spec(out=sketch.linear(h, 5)), 17, all_blocks=False, title=text)


def idioms(dtype: str) -> Iterator[dict[str, object]]:
    """Models as people write them: a pre-norm tower, a tabular ResNet, a skip, heads, gates with norms, halves."""
    for index, (title, spec) in enumerate(written(dtype)):
        # A row pass is one program per row, and the interpreter is slow.
        for rows in ((1, 17), (16, 5), (33, 2))[index % 3] if title != "heads" else (130,):
            yield from compare(spec, rows, title=title, all_blocks=rows > 16)


def programs(dtype: str) -> Iterator[dict[str, object]]:
    """Any graph of all steps. Narrow ones fit `whole`, wide ones do not."""
    for seed in range(PROGRAMS):
        spec = random_program(seed, steps=4 + seed % 7, max_width=(40, 70, 140)[seed % 3], dtype=dtype)
        yield from compare(spec, (1, 5, 18)[seed % 3], all_blocks=seed % 5 == 0, title=f"program {seed}")


def rankers(dtype: str) -> Iterator[dict[str, object]]:
    """Programs with ids: lookups in one launch, and what follows them in every strategy; and all of it in torch."""
    for title, spec in RANKERS.items():
        mlp = make_mlp(spec.model_copy(update={"dtype": dtype}))
        for rows in (1, 17):
            x = torch.randn(rows, spec.in_features, generator=torch.Generator().manual_seed(1))
            spread_ids(spec.record, x.numpy())
            exact = exact_results(mlp, x)
            # A few sums of tens of products, stored in the model's dtype. The floats are rounded to it first.
            rounding = max(torch.finfo(TORCH_DTYPES[dtype]).eps, RELATIVE / 2)  # TF32 has the digits of fp16
            allowed = 8 * rounding * exact.abs().max().item()
            in_torch = torch.empty(rows, spec.out_features)
            CublasProgram(mlp, CPU).enqueue(x, in_torch, rows, ())
            results = {"torch": in_torch}
            found = tiles(mlp.spec, all_blocks=rows == 17)
            results |= {f"{number} {tile.label}": run(mlp, tile, x) for number, tile in enumerate(found)}
            for label, y in results.items():
                error = (y.double() - exact).abs().max().item()
                name = f"{title} {dtype} rows={rows} {label}"
                yield {"case": name, "ok": error <= allowed, "error": error, "allowed": allowed}


def launches(dtype: str) -> Iterator[dict[str, object]]:
    """As many as the program says, and as the check's table says."""
    count = 0
    launch = Binary.launch

    def counting(*arguments: object) -> None:
        nonlocal count
        count += 1
        launch(*arguments)

    Binary.launch = counting
    for spec, most in (
        (make_spec((8, 20, 20, 20, 4), output="softmax", dtype=dtype), (1, 4)),
        (make_spec((8, 20, 70), gated=True, output="softmax", dtype=dtype), (1, 3)),
    ):
        for tile in tiles(spec, all_blocks=False):
            count = 0
            run(make_mlp(spec), tile, torch.ones(40, 8))
            expected = most[tile.strategy == "layered"]
            said = TritonProgram(make_mlp(spec), tile, CPU).launches
            yield {
                "case": f"{spec.summary()} {tile.label}: {count} launches",
                "ok": count == expected == said,
            }


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
    chosen = [
        ("chain", spec),
        ("long sums", make_spec((1100, 40, 5), "silu", gated=(True, False), dtype=dtype)),
        *((title, each) for title, each in written(dtype) if title in ("skip", "pre-norm 33")),
    ]
    for title, each in chosen:
        mlp = make_mlp(each)
        rows_in_all = 130 if title == "chain" else 34
        x = torch.randn(rows_in_all, each.in_features, generator=torch.Generator().manual_seed(2))
        for tile in tiles(each, all_blocks=title == "chain"):
            whole = run(mlp, tile, x)
            for rows in (1, 15, 16, 17, 65, 129) if title == "chain" else (1, 17):
                part = run(mlp, tile, x[rows_in_all - rows :].contiguous())
                same = torch.equal(part.view(torch.int32), whole[rows_in_all - rows :].view(torch.int32))
                yield {"case": f"{title} {spec.dtype} rows={rows} {tile.label}", "ok": same}


class Interpreted(Kernel):
    def __init__(self, mlp: Mlp, tile: Tile) -> None:
        super().__init__(
            mlp.spec, KernelInfo("fused", "triton", "cuda", tile.label, "sm_80", mlp.spec.dtype, 1)
        )
        self._mlp, self._tile = mlp, tile

    def run(self, x: Float32, y: Float32) -> str:
        y[...] = run(self._mlp, self._tile, torch.from_numpy(x)).numpy()
        return self._tile.label


def long_sums(dtype: str) -> Iterator[dict[str, object]]:
    """Float32 models with thousands of inputs pass the check at load, though a GPU adds up a product one by one."""
    InterpreterBuilder.create_dot = sum_in_fixed_order
    for widths in ((4096, 64), (11008, 17), (4096, 17, 3)):
        mlp = make_mlp(make_spec(widths, dtype=dtype))
        for tile in tiles(mlp.spec, all_blocks=False):
            try:
                check_against_float64(Interpreted(mlp, tile), mlp)
                refuted = ""
            except KernelRefuted as error:
                refuted = str(error)
            yield {"case": f"{widths} {tile.label}", "ok": not refuted, "refuted": refuted}


POISONS = (
    torch.nan,
    torch.inf,
    -torch.inf,
    3e38,
)  # the last overflows: at once in fp16, in a product in fp32


def poison(dtype: str) -> Iterator[dict[str, object]]:
    """NaN, infinities and overflow come out as in eager, and stay in their own row."""
    for index, name in enumerate(ACTIVATIONS):
        # Two hidden layers, both narrower than their tile; wide on one end or the other, where the loops are.
        shape = ((8, 20, 18, 4), (70, 20, 18, 4), (8, 20, 18, 70))[index % 3]
        yield from poisoned(make_spec(shape, name, dtype=dtype))
    # Gates that saturate, so that they do not make NaN of infinity by themselves.
    for gated in ((True, False, False), (False, True, False), (False, False, True)):
        yield from poisoned(make_spec((8, 20, 18, 4), "sigmoid", gated=gated, dtype=dtype))
    yield from poisoned(make_spec((8, 20, 4), "relu", output="softmax", dtype=dtype))
    yield from poisoned(make_spec((8, 20, 70), "relu", output="log_softmax", dtype=dtype))
    # Products, norms and tiles put together, all of them narrower than what holds them.
    sketch = Sketch(8, dtype)
    h = sketch.linear("input", 20, "clip(x, 0, 1)")
    h = sketch.combine(
        "maximum", sketch.linear(sketch.norm(sketch.combine("concat", h, "input"), "rms"), 8), "input"
    )
    yield from poisoned(sketch.spec(out=sketch.linear(h, 4, "sigmoid"), h=h))


def poisoned(spec: MlpSpec) -> Iterator[dict[str, object]]:
    mlp = positive_after_first(make_mlp(spec))
    clean = torch.randn(18, spec.in_features, generator=torch.Generator().manual_seed(4))
    x = clean.clone()
    rows = range(3, 3 + len(POISONS))
    for row, value in zip(rows, POISONS, strict=True):
        x[row] = 0.0  # beside an overflow, the order of a sum would decide
        x[row, 2] = value
    others = [row for row in range(18) if row not in rows]
    eager = eager_results(mlp, x.to(TORCH_DTYPES[spec.dtype])).float()
    for tile in tiles(spec, all_blocks=False):
        y, expected = run(mlp, tile, x), run(mlp, tile, clean)
        rounded = y[rows].to(TORCH_DTYPES[spec.dtype]).float()  # as eager's are: the largest become infinite
        alike = is_alike(rounded.double(), eager[rows].double())
        apart = torch.equal(y[others], expected[others])
        shape = f"{spec.summary()} {precision_of(spec, tf32=False)} {tile.label}"
        yield {
            "case": shape,
            "ok": alike and apart,
            "got": y[rows, 0].tolist(),
            "eager": eager[rows, 0].tolist(),
        }


def is_alike(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Up to 2 % of the largest number in its row: numbers that nearly cancel keep the error of those they came from."""
    largest = torch.where(expected.isfinite(), expected.abs(), 0).amax(1, keepdim=True)
    near = (got - expected).abs() <= 0.02 * (1 + largest)
    return bool((near | (got == expected) | (got.isnan() & expected.isnan())).all())


def positive_after_first(mlp: Mlp) -> Mlp:
    """Weights of later layers without a sign: infinities add up instead of cancelling to NaN, which would hide
    a NaN that should not be there."""
    first = next(step.prefix for step in mlp.spec.steps if step.op in ("linear", "gated"))
    tensors = {
        name: array if name.startswith(f"{first}.") else abs(array) for name, array in mlp.tensors().items()
    }
    return Mlp(mlp.spec, tensors)


def minus_infinity(_: str) -> Iterator[dict[str, object]]:
    """Logits that overflow to -inf, in whole tiles of a row or all over it: softmax as torch's. In float32,
    whose products overflow; those of fp16 are summed in float32 and do not."""
    for width, output in product((70, 7), ("softmax", "log_softmax")):
        spec = make_spec((1, 20, width), output=output)
        for first, last in ((0, width - 3), (0, width), (width - 3, width)):
            # Below 1e-34, two numbers of TF32 hold fewer digits than one of float32.
            weight = torch.linspace(-1e-34, 1e-34, width)[:, None].repeat(1, 20)
            weight[first:last] = -1e6
            mlp = Mlp(
                spec,
                (LayerWeights(torch.ones(20, 1), torch.zeros(20)), LayerWeights(weight, torch.ones(width))),
            )
            x = torch.tensor([[1.0], [1e33], [2.0]])  # -inf in the row between two others
            with torch.inference_mode():
                eager = mlp.to_torch()(x)
            for tile in tiles(spec, all_blocks=False):
                ok = torch.allclose(run(mlp, tile, x), eager, RELATIVE, 1e-3 * RELATIVE, equal_nan=True)
                yield {"case": f"{output} of {width}, -inf in {first}:{last} {tile.label}", "ok": ok}


GROUPS = (widths, depths, batches, activations, formulas, idioms, programs, rankers, poison, minus_infinity)
# The last ones replace the product of the interpreter, or what launches.
GROUPS += (launches, long_sums, invariance, served)

if __name__ == "__main__":
    InterpretedFunction.__call__ = call_device_function
    cases_of_a_group = int(sys.argv[2]) if len(sys.argv) > 2 else None
    for group in GROUPS:
        for result in islice(group(sys.argv[1]), cases_of_a_group):
            print(json.dumps({"group": group.__name__, **result}))
