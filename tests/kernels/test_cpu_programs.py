# SPDX-License-Identifier: Apache-2.0
"""The CPU kernel runs every program: right against float64, and to the bit the same whatever the batch, the threads and
the rows beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fused_mlp.kernels import _cpu
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.kernels.backends.cpu_placement import place
from fused_mlp.kernels.cores import usable_cores
from fused_mlp.kernels.selfcheck import check_against_float64
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.spec import (
    INPUT,
    Affine,
    Combine,
    Concat,
    Elementwise,
    Gated,
    Linear,
    Norm,
    Output,
    Slice,
    Softmax,
)
from tests.support.random_programs import random_mlp, random_rows, random_weights

ISAS = _cpu.usable_isas()


def run(kernel: CpuKernel, x: np.ndarray) -> np.ndarray:
    """With rows before and after the result, which must stay as they are."""
    guarded = np.full((len(x) + 2, kernel.spec.out_features), 7.25, np.float32)
    kernel.run(x, guarded[1:-1])
    assert (guarded[[0, -1]] == 7.25).all(), "wrote outside of y"
    return guarded[1:-1]


def assert_right(mlp: Mlp, kernel: CpuKernel, x: np.ndarray) -> np.ndarray:
    """At most twice the error of plain float32, but for a few roundings of the largest output."""
    exact = evaluate(mlp, x.astype(np.float64))
    plain = evaluate(mlp, x)
    y = run(kernel, x)
    rounding = 8 * np.finfo(np.float32).eps / 2 * np.abs(exact).max()
    allowed = 2 * np.abs(plain - exact).max() + rounding
    np.testing.assert_allclose(y, exact, rtol=0, atol=allowed, err_msg=mlp.spec.summary())
    return y


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def program(in_features: int, *steps: Any, outputs: tuple[str, ...] = ()) -> Mlp:
    heads = tuple(Output(name=f"head{i}", value=value) for i, value in enumerate(outputs))
    fields = {"outputs": heads} if heads else {}
    return random_weights(MlpSpec(in_features=in_features, steps=steps, **fields))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_are_right_and_batch_invariant(seed: int, isa: str) -> None:
    mlp = random_mlp(seed, steps=4 + seed % 20)
    x = random_rows(mlp, 130, seed)
    kernel = CpuKernel(mlp, 1, isa)
    y = assert_right(mlp, kernel, x)
    for rows in (1, 2, 3, 5, 8, 13, 64):
        assert_same_bits(run(kernel, x[:rows]), y[:rows])
    assert_same_bits(run(kernel, x[7:20]), y[7:20])


@pytest.mark.parametrize("seed", range(40, 60))
def test_random_programs_give_the_same_bits_on_two_threads(seed: int) -> None:
    mlp = random_mlp(seed, max_width=800)
    x = random_rows(mlp, 130, seed)
    alone, together = CpuKernel(mlp, 1), CpuKernel(mlp, 2)
    for rows in (1, 3, 5, 6, 11, 40, 130):
        assert_same_bits(run(together, x[:rows]), run(alone, x[:rows]))


@pytest.mark.parametrize("seed", range(60, 66))
def test_random_programs_pass_the_check_at_load(seed: int) -> None:
    mlp = random_mlp(seed)
    check_against_float64(CpuKernel(mlp, usable_cores()), mlp)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(100, 140))
def test_random_programs_with_tables_are_right_and_batch_invariant(seed: int, isa: str) -> None:
    mlp = random_mlp(seed, steps=4 + seed % 30, tables=True)
    x = random_rows(mlp, 130, seed)
    kernel = CpuKernel(mlp, 1, isa)
    y = assert_right(mlp, kernel, x)
    for rows in (1, 2, 5, 33):
        assert_same_bits(run(kernel, x[7 : 7 + rows]), y[7 : 7 + rows])
    assert_same_bits(run(CpuKernel(mlp, 2, isa), x), y)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("function", ["x", "relu", "gelu"])
def test_rows_that_share_their_cache_sets(function: str, threads: int, isa: str) -> None:
    """Rows of 4 KiB are copied for tiles of many rows, and written by way of a buffer: same bits as one by one."""
    mlp = program(
        1024,
        Linear(name="fc", input=INPUT, out_features=1024),
        Elementwise(name="hidden", input="fc", function=function),
        Combine(name="sum", op="add", inputs=(INPUT, "hidden")),
        Slice(name="part", input=INPUT, start=100, stop=140),
        Linear(name="narrow", input="part", out_features=40),
        Linear(name="wide", input="narrow", out_features=984),
        outputs=("sum", "narrow", "wide"),
    )
    x = random_rows(mlp, 60)
    kernel = CpuKernel(mlp, threads, isa)
    y = assert_right(mlp, kernel, x)
    for first, last in ((0, 1), (3, 11), (3, 12), (5, 30)):
        assert_same_bits(run(kernel, x[first:last]), y[first:last])


def test_very_deep_program() -> None:
    steps: list[Any] = []
    value = INPUT
    for index in range(300):  # more steps than threads can take one by one
        steps.append(Linear(name=f"fc{index}", input=value, out_features=16))
        steps.append(Norm(name=f"norm{index}", input=f"fc{index}", kind="rms", eps=0.1))
        value = f"norm{index}"
    mlp = program(16, *steps)
    x = random_rows(mlp, 20)
    assert_right(mlp, CpuKernel(mlp, 2), x)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 31, 33, 100, 1000, 40_000])
@pytest.mark.parametrize("kind", ["layer", "rms", "l2"])
def test_norms_of_any_width(kind: str, width: int, isa: str) -> None:
    mlp = program(width, Norm(name="norm", input=INPUT, kind=kind, eps=1e-5))
    x = random_rows(mlp, 5)
    x[1] += 100.0  # a mean that is large beside the deviation
    x[2] = 0.0
    kernel = CpuKernel(mlp, 1, isa)
    exact = evaluate(mlp, x.astype(np.float64))
    y = run(kernel, x)
    np.testing.assert_allclose(y[[0, 2, 3, 4]], exact[[0, 2, 3, 4]], rtol=0, atol=2e-5)
    # A mean of 100 is known to half of its last place, 4e-6, whatever computes it.
    np.testing.assert_allclose(y[1], exact[1], rtol=0, atol=1e-4 if width > 2 else 3e-3)


@pytest.mark.parametrize("isa", ISAS)
def test_one_value_in_several_places(isa: str) -> None:
    """A value that is concatenated twice, is an output too, and is sliced; an input that is an output."""
    mlp = program(
        19,
        Linear(name="a", input=INPUT, out_features=33),
        Concat(name="twice", inputs=("a", "a", INPUT)),
        Slice(name="part", input="twice", start=30, stop=50),
        Linear(name="b", input="part", out_features=5),
        Concat(name="nested", inputs=("twice", "b", "a")),
        outputs=("nested", "a", "b", "part", INPUT, "a"),
    )
    x = random_rows(mlp, 23)
    y = assert_right(mlp, CpuKernel(mlp, 1, isa), x)
    assert_same_bits(y[:, mlp.spec.columns("head1")].copy(), y[:, mlp.spec.columns("head5")].copy())
    np.testing.assert_array_equal(y[:, mlp.spec.columns("head4")], x)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("order", [("pi", "v"), ("v", "pi")])
def test_heads_of_one_input(order: tuple[str, str], isa: str) -> None:
    mlp = program(
        17,
        Linear(name="fc", input=INPUT, out_features=64),
        Elementwise(name="hidden", input="fc", function="tanh"),
        Linear(name="pi", input="hidden", out_features=6),
        Linear(name="v", input="hidden", out_features=1, bias=False),
        outputs=order,
    )
    assert_right(mlp, CpuKernel(mlp, 1, isa), random_rows(mlp, 30))


@pytest.mark.parametrize("isa", ISAS)
def test_products_of_one_input_whose_values_go_different_ways(isa: str) -> None:
    mlp = program(
        30,
        Linear(name="q", input=INPUT, out_features=20),
        Linear(name="k", input=INPUT, out_features=20),
        Linear(name="v", input=INPUT, out_features=20),
        Combine(name="qk", op="multiply", inputs=("q", "k")),
        Softmax(name="scores", input="qk"),
        Combine(name="mixed", op="multiply", inputs=("scores", "v")),
        Concat(name="all", inputs=("mixed", "k")),
    )
    assert_right(mlp, CpuKernel(mlp, 1, isa), random_rows(mlp, 30))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bias", [False, True])
def test_scales_are_folded_into_their_neighbours(bias: bool, isa: str) -> None:
    mlp = program(
        40,
        Affine(name="first", input=INPUT, bias=bias),
        Linear(name="fc1", input="first", out_features=50, bias=bias),
        Affine(name="after", input="fc1"),
        Elementwise(name="hidden", input="after", function="relu"),
        Norm(name="norm", input="hidden", kind="layer", bias=bias),
        Gated(name="glu", input="norm", out_features=20, function="sigmoid", bias=bias),
        Linear(name="twin", input="norm", out_features=20, weights="glu2"),
        Combine(name="sum", op="subtract", inputs=("glu", "twin")),
        Linear(name="again", input="hidden", out_features=20, weights="glu2"),
        outputs=("sum", "again"),
    )
    assert_right(mlp, CpuKernel(mlp, 1, isa), random_rows(mlp, 30))


def test_scales_that_float32_cannot_hold_are_not_folded() -> None:
    spec = MlpSpec(
        in_features=3,
        steps=(
            Affine(name="scale", input=INPUT, bias=False),
            Linear(name="fc", input="scale", out_features=2, bias=False),
        ),
    )
    weights = {"scale.weight": np.full(3, 1e-30, np.float32), "fc.weight": np.full((2, 3), 1e-12, np.float32)}
    mlp = Mlp(spec, weights)
    x = np.full((1, 3), 1e30, np.float32)
    np.testing.assert_allclose(run(CpuKernel(mlp, 1), x), 3e-12, rtol=1e-5)


def test_weights_can_be_replaced() -> None:
    mlp = random_mlp(3)
    other = random_weights(mlp.spec, seed=9)
    x = random_rows(mlp, 10)
    repacked = CpuKernel(mlp, 1).repacked(other.tensors())
    assert_same_bits(run(repacked, x), run(CpuKernel(other, 1), x))


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_nan_and_infinity_do_not_touch_their_neighbours(isa: str) -> None:
    mlp = random_mlp(21)
    kernel = CpuKernel(mlp, 1, isa)
    x = random_rows(mlp, 40)
    expected = run(kernel, x)
    poisoned = x.copy()
    poisoned[::3] = np.nan
    poisoned[1::3, 0] = np.inf
    assert_same_bits(run(kernel, poisoned)[2::3], expected[2::3])


def test_scratch_buffers_are_shared() -> None:
    """A tower of any depth needs no more scratch space than one of its blocks."""

    def tower(blocks: int) -> MlpSpec:
        steps: list[Any] = []
        value = INPUT
        for index in range(blocks):
            steps += [
                Norm(name=f"{index}.norm", input=value, kind="layer"),
                Linear(name=f"{index}.up", input=f"{index}.norm", out_features=128),
                Elementwise(name=f"{index}.gelu", input=f"{index}.up", function="gelu"),
                Linear(name=f"{index}.down", input=f"{index}.gelu", out_features=32),
                Combine(name=f"{index}.add", op="add", inputs=(value, f"{index}.down")),
            ]
            value = f"{index}.add"
        return MlpSpec(in_features=32, steps=tuple(steps))

    assert sum(place(tower(20)).scratch) == sum(place(tower(3)).scratch) <= 2 * 128 + 2 * 32


def test_phases_name_every_operation() -> None:
    mlp = program(
        16,
        Norm(name="norm", input=INPUT, kind="layer"),
        Linear(name="fc", input="norm", out_features=24),
        Softmax(name="soft", input="fc"),
        Concat(name="cat", inputs=(INPUT, "soft")),
    )
    kernel = CpuKernel(mlp, 1)
    _cpu.start_recording_phases(100)
    run(kernel, random_rows(mlp, 5))
    spans, dropped = _cpu.stop_recording_phases()
    assert dropped == 0
    assert [(span[0], span[1], span[3]) for span in spans] == [
        ("norm", 0, 5),
        ("layer", 1, 5),
        ("softmax", 2, 5),
        ("map", 3, 5),
    ]
