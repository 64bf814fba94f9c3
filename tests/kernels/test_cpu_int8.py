# SPDX-License-Identifier: Apache-2.0
"""int8 and bfloat16 products of the CPU kernel: exact sums, the same bits whatever the batch, the threads and the
instruction set; rows that int8 cannot hold answer as documented."""

from __future__ import annotations

import numpy as np
import pytest

from fused_mlp import kernels
from fused_mlp.kernels import KernelRefuted, _cpu
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.kernels.selfcheck import check_against_float64
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.evaluation import Arithmetic, evaluate
from fused_mlp.models.program.spec import INPUT, Concat, Elementwise, Gated, Linear, Norm, Softmax
from fused_mlp.models.weights.precision import to_precision
from fused_mlp.models.weights.quantization import Int8Matrix, ReducedMatrix
from tests.support.random_programs import random_mlp, random_rows, random_weights

ISAS = _cpu.usable_isas(int8=True)


class Int64Products(Arithmetic):
    """An independent reference: sums in int64, everything else in float32, in the kernel's order."""

    def product(self, x: np.ndarray, weight: np.ndarray, reduced: ReducedMatrix | None) -> np.ndarray:
        if not isinstance(reduced, Int8Matrix):
            return super().product(x, weight, reduced)
        result = np.empty((len(x), len(weight)), np.float32)
        for row, values in enumerate(x):
            span = max(np.abs(values).max(), np.float32(2.0**-100))
            whole = np.rint(values * (np.float32(127) / span)).astype(np.int64)
            sums = (reduced.values.astype(np.int64) @ whole).astype(np.float32)
            result[row] = sums * reduced.scales * (span / np.float32(127))
        return result


def same_bits(got: np.ndarray, expected: np.ndarray) -> bool:
    return np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def chain(*widths: int, function: str = "relu", gated: bool = False) -> Mlp:
    steps: list[Linear | Gated | Elementwise] = []
    value = INPUT
    for number, width in enumerate(widths[1:]):
        if gated:
            steps.append(Gated(name=f"g{number}", input=value, out_features=width, function=function))
        else:
            steps.append(Linear(name=f"l{number}", input=value, out_features=width))
            steps.append(Elementwise(name=f"f{number}", input=f"l{number}", function=function))
        value = steps[-1].name
    return random_weights(MlpSpec(in_features=widths[0], steps=tuple(steps)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    "widths", [(1, 1), (3, 5, 2), (17, 33, 31), (64, 65, 10), (300, 129, 7), (1031, 40, 1031)]
)
def test_products_are_those_of_int64(isa: str, gated: bool, widths: tuple[int, ...]) -> None:
    mlp = to_precision(chain(*widths, gated=gated), "int8")
    kernel = CpuKernel(mlp, 1, isa)
    for rows in (1, 2, 3, 5, 13, 30):
        x = random_rows(mlp, rows, rows)
        assert same_bits(kernel(x), evaluate(mlp, x, Int64Products()))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_rows_are_quantized_once_for_all_products_that_read_them(threads: int, rows: int) -> None:
    steps = [
        Linear(name="a", input=INPUT, out_features=300),
        Elementwise(name="f", input="a", function="tanh"),
        Linear(name="b", input=INPUT, out_features=40),
        Elementwise(name="g", input="b", function="relu"),  # another function: no product of both
        Concat(name="both", inputs=("f", "g")),
    ]
    mlp = to_precision(random_weights(MlpSpec(in_features=200, steps=steps)), "int8")
    kernel = CpuKernel(mlp, threads)
    x = random_rows(mlp, rows, rows)
    assert same_bits(kernel(x), CpuKernel(mlp, 1, "portable")(x))
    if threads == 1:
        _cpu.start_recording_phases(100)
        kernel(x)
        spans, _ = _cpu.stop_recording_phases()
        assert [span[0] for span in spans].count("quantize") == 1


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_are_the_same_on_every_instruction_set(seed: int) -> None:
    mlp = to_precision(random_mlp(seed), "int8")
    x = random_rows(mlp, 14, seed)
    first, *others = (CpuKernel(mlp, 1, isa) for isa in ISAS)
    expected = first(x)
    check_against_float64(first, mlp)
    for other in others:
        assert same_bits(other(x), expected), other.describe().isa


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_are_the_same_in_any_batch_and_on_any_threads(seed: int) -> None:
    mlp = to_precision(random_mlp(seed, max_width=600), "int8")
    x = random_rows(mlp, 67, seed)
    kernel = CpuKernel(mlp, 1)
    expected = kernel(x)
    for rows in (1, 2, 5, 12, 13, 31):
        assert same_bits(kernel(np.ascontiguousarray(x[3 : 3 + rows])), expected[3 : 3 + rows])
    for threads in (2, 3):
        many = CpuKernel(mlp, threads)
        assert same_bits(many(x), expected)
        assert same_bits(many(x[:1]), expected[:1])


@pytest.mark.parametrize("isa", ISAS)
def test_the_ends_of_the_range(isa: str) -> None:
    """All 127, all -127, alternating signs, zeros, one huge value, denormals: no product saturates or overflows."""
    inputs = 4099
    signs = np.where(np.arange(inputs) % 2, -1, 1)
    values = np.stack([np.full(inputs, 127), np.full(inputs, -127), 127 * signs, np.zeros(inputs)])
    matrix = Int8Matrix(
        np.repeat(values, 9, axis=0).astype(np.int8), np.linspace(0.5, 2, 36, dtype=np.float32)
    )
    spec = MlpSpec(in_features=inputs, steps=(Linear(name="l", input=INPUT, out_features=36, bias=False),))
    mlp = Mlp(spec, {}, reduced={"l.weight": matrix})
    x = np.zeros((8, inputs), np.float32)
    x[0], x[1], x[2] = 3.0, -3.0, signs
    x[4] = 1.0
    x[4, 77] = 3e38
    x[5] = 1e-42
    x[6] = np.float32(2.0**-90) * signs
    x[7] = np.float32(1e-32) * signs  # below the smallest range, but not nothing
    y = CpuKernel(mlp, 1, isa)(x)
    assert same_bits(y, evaluate(mlp, x, Int64Products()))
    assert y[0, 0] == pytest.approx(inputs * 127 * 3.0 * 0.5)
    assert not y[[3, 5]].any()  # nothing, and too small to be anything


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("widths", [(50, 40), (50, 40, 30)])
def test_a_row_that_is_not_finite_is_nan_and_harms_no_other(
    isa: str, bad: float, widths: tuple[int, ...]
) -> None:
    mlp = to_precision(chain(*widths), "int8")
    kernel = CpuKernel(mlp, 1, isa)
    x = random_rows(mlp, 9)
    expected = kernel(x)
    x[4, 49] = bad
    y = kernel(x)
    assert np.isnan(y[4]).all()
    assert same_bits(np.delete(y, 4, 0), np.delete(expected, 4, 0))


@pytest.mark.parametrize("isa", _cpu.usable_isas())
def test_bfloat16_is_float32_with_rounded_weights(isa: str) -> None:
    """To the bit: the weights are widened as they are loaded, and summed in the same order."""
    for seed in range(8):
        mlp = to_precision(random_mlp(seed), "bfloat16")
        widened = Mlp(mlp.spec, mlp.tensors())
        # A norm's scale is folded into float32 weights and not into others: another rounding, and another order.
        if any(isinstance(step, Norm) or step.op == "affine" for step in mlp.spec.steps):
            check_against_float64(CpuKernel(mlp, 1, isa), mlp)
            continue
        x = random_rows(mlp, 15, seed)
        assert same_bits(CpuKernel(mlp, 1, isa)(x), CpuKernel(widened, 1, isa)(x))


def test_models_that_are_bfloat16_already_keep_their_weights_so() -> None:
    spec = MlpSpec(
        in_features=70,
        steps=(
            Linear(name="a", input=INPUT, out_features=45),
            Softmax(name="s", input="a"),
            Linear(name="b", input="s", out_features=3),
        ),
        dtype="bfloat16",
    )
    mlp = random_weights(spec)
    widened = Mlp(spec.model_copy(update={"dtype": "float32"}), mlp.tensors())
    x = random_rows(mlp, 20)
    assert same_bits(CpuKernel(mlp, 1)(x), CpuKernel(widened, 1)(x))


def test_compile_quantizes_and_says_so() -> None:
    mlp = chain(64, 128, 10)
    kernel = kernels.compile(mlp, device="cpu", backend="cpu", threads=1, precision="int8")
    assert kernel.describe().dtype == "int8"
    assert kernel.describe().isa == ISAS[0]
    x = random_rows(mlp, 40)
    exact = evaluate(mlp, x.astype(np.float64))
    error = np.abs(kernel(x) - exact).max() / np.abs(exact).max()
    assert 1e-4 < error < 0.02  # two layers of 7 bits each; and not float32


def test_a_kernel_that_multiplies_other_weights_is_refuted() -> None:
    mlp = to_precision(chain(64, 128, 10), "int8")
    kernel = CpuKernel(mlp, 1)
    wrong = dict(mlp.reduced)
    matrix = wrong["l1.weight"]
    assert isinstance(matrix, Int8Matrix)
    values = matrix.values.copy()
    values[3, :32] = 127
    wrong["l1.weight"] = Int8Matrix(values, matrix.scales)
    with pytest.raises(KernelRefuted, match="disagrees with the float64 reference"):
        check_against_float64(kernel, Mlp(mlp.spec, mlp.tensors(), reduced=wrong))
