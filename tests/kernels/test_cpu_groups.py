# SPDX-License-Identifier: Apache-2.0
"""Rows with words in common are computed once for a group, and give the bits of whole rows: for random programs and
words, every precision, instruction set, number of threads and mix of groups."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fused_mlp.kernels import _cpu
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.steps import Combine, Concat, Elementwise, Gated, Linear, Slice
from fused_mlp.models.weights.precision import to_precision
from tests.support.random_programs import random_mlp, random_rows, random_weights

ISAS = _cpu.usable_isas()
Runs = list[tuple[int, int]]


def runs_of(shared: np.ndarray) -> Runs:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], shared.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def check(kernel: CpuKernel, mlp: Mlp, shared: np.ndarray, sizes: list[int], seed: int = 0) -> None:
    x = random_rows(mlp, sum(sizes), seed)
    groups, at = [], 0
    for size in sizes:
        x[at : at + size, shared] = x[at, shared]
        rows = x[at : at + size]
        groups.append((np.ascontiguousarray(rows[0, shared]), np.ascontiguousarray(rows[:, ~shared])))
        at += size
    expected = np.empty((len(x), mlp.spec.out_features), np.float32)
    kernel.run(x, expected)
    got = np.full_like(expected, 7)
    assert kernel._compiled.run_groups(runs_of(shared), groups, got)
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def some_words(rng: random.Random, mlp: Mlp) -> np.ndarray:
    """Whole inputs where they have names, else any runs of words; at least one word is not shared."""
    width = mlp.spec.in_features
    shared = np.zeros(width, bool)
    if mlp.spec.record:
        for part in mlp.spec.record:
            shared[part.start : part.stop] = rng.random() < 0.6
    else:
        for _ in range(rng.randint(1, 3)):
            first = rng.randrange(width)
            shared[first : first + rng.randint(1, width)] = True
    if shared.all():
        shared[rng.randrange(width)] = False
    return shared


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    tables=st.booleans(),
    precision=st.sampled_from(["float32", "bfloat16", "int8"]),
    isa=st.sampled_from(ISAS),
    threads=st.sampled_from([1, 2]),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_groups_give_the_bits_of_whole_rows(
    seed: int, tables: bool, precision: str, isa: str, threads: int, sizes: list[int]
) -> None:
    mlp = random_mlp(seed, tables=tables)
    if precision != "float32":
        mlp = to_precision(mlp, precision)
    kernel = CpuKernel(mlp, threads, isa)
    rng = random.Random(seed)
    for _ in range(2):
        shared = some_words(rng, mlp)
        if shared.any():
            check(kernel, mlp, shared, sizes, seed)


def two_parts(width: int, columns: tuple[tuple[int, int], ...], *, gated: bool = False) -> Mlp:
    """A product over slices of the input, in that order, and layers after it."""
    slices = [Slice(name=f"s{i}", input="input", start=a, stop=b) for i, (a, b) in enumerate(columns)]
    kind = Gated if gated else Linear
    options = {"function": "silu"} if gated else {}
    first = kind(name="first", input="all", out_features=70, **options)
    spec = MlpSpec(
        in_features=width,
        steps=(
            *slices,
            Concat(name="all", inputs=tuple(each.name for each in slices)),
            first,
            Elementwise(name="relu", input="first", function="relu"),
            Linear(name="again", input="all", out_features=70),
            Combine(name="sum", op="add", inputs=("relu", "again")),
            Linear(name="last", input="sum", out_features=3),
        ),
    )
    return random_weights(spec)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    "columns",
    [
        ((0, 300), (300, 331)),  # what is shared comes first
        ((300, 331), (0, 300)),  # last
        ((0, 100), (300, 331), (100, 300)),  # in between, not at the ends of blocks
        ((0, 128), (300, 331), (128, 300)),
    ],
)
def test_products_of_shared_and_own_values(
    columns: tuple[tuple[int, int], ...], gated: bool, precision: str, isa: str
) -> None:
    mlp = two_parts(331, columns, gated=gated)
    kernel = CpuKernel(mlp if precision == "float32" else to_precision(mlp, precision), 2, isa)
    shared = np.arange(331) < 300
    for sizes in ([1], [1, 1, 1], [700], [5, 64, 1, 131]):
        check(kernel, mlp, shared, sizes)
        check(kernel, mlp, ~shared, sizes)


def test_many_sets_of_shared_words_and_threads_at_once() -> None:
    mlp = two_parts(331, ((0, 300), (300, 331)))
    kernel = CpuKernel(mlp, 2)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for first in range(30):  # more sets than are kept
                shared = (np.arange(331) >= first) & (np.arange(331) < 250 + seed)
                check(kernel, mlp, shared, [3, 9], seed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_wrong_shapes_are_refused() -> None:
    mlp = two_parts(20, ((0, 10), (10, 20)))
    compiled = CpuKernel(mlp, 1)._compiled
    y = np.empty((2, 3), np.float32)
    words, own = np.zeros(10, np.float32), np.zeros((2, 10), np.float32)
    assert compiled.run_groups([(0, 10)], [(words, own)], y)
    assert not compiled.run_groups([(0, 11)], [(words, own)], y)
    assert not compiled.run_groups([(0, 10)], [(words, own[:1])], y)
    assert not compiled.run_groups([(5, 5)], [(words, own)], y)
    assert not compiled.run_groups([(15, 25)], [(words, own)], y)
