# SPDX-License-Identifier: Apache-2.0
"""Models with several inputs, ids and tables: every backend computes them, and kernels take inputs by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fused_mlp import kernels
from fused_mlp.kernels import Kernel, _cpu
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.kernels.backends.cpu_placement import place
from fused_mlp.kernels.backends.eager import EagerKernel
from fused_mlp.kernels.backends.torch import TorchKernel
from fused_mlp.kernels.error_bound import PRECISIONS, forward_with_bound
from fused_mlp.kernels.errors import KernelInputError
from fused_mlp.kernels.nn import reference
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.arithmetic import ids_of
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.inputs import Field, Input, InputError, Modulo
from fused_mlp.models.program.steps import Bag, Bucketize, Concat, Embedding, Linear, Slice
from fused_mlp.models.weights.precision import to_precision
from tests.support.random_programs import random_mlp, random_rows, random_weights

BACKENDS = {
    "eager": lambda mlp: EagerKernel(mlp, "cpu", None),
    "torch": lambda mlp: TorchKernel(mlp, None),
    **{isa: lambda mlp, isa=isa: CpuKernel(mlp, 1, isa) for isa in _cpu.usable_isas()},
}


def run(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    y = np.empty((len(x), kernel.spec.out_features), np.float32)
    kernel.run(x, y)
    return y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(300, 315))
def test_every_backend_is_within_the_error_bound(backend, seed):
    mlp = random_mlp(seed, steps=4 + seed % 25, tables=True)
    x = random_rows(mlp, 20, seed)
    bound = forward_with_bound(mlp, x, PRECISIONS["float32"])
    assert bound.admits(run(BACKENDS[backend](mlp), x)).all()
    if backend == "eager":  # and the bound is no excuse: most of it is known, and close
        known = np.isfinite(bound.error)
        assert known.mean() > 0.9
        assert (bound.error[known] < 1e-2 * (1 + np.abs(bound.value).max())).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("seed", range(320, 326))
def test_ids_survive_half_precision(dtype, seed):
    mlp = random_weights(random_mlp(seed, tables=True).spec.model_copy(update={"dtype": dtype}), seed)
    x = random_rows(mlp, 20, seed)
    for kernel in (EagerKernel(mlp, "cpu", None), CpuKernel(mlp, 1)):
        bound = forward_with_bound(mlp, x, PRECISIONS[kernel.describe().dtype])
        assert bound.admits(run(kernel, x)).all()


@pytest.mark.parametrize("seed", range(330, 340))
def test_the_reference_and_the_written_module_compute_the_same(seed):
    mlp = random_mlp(seed, tables=True)
    x = random_rows(mlp, 9, seed)
    exact = evaluate(mlp, x.astype(np.float64))
    weights = [torch.from_numpy(tensor).double() for tensor in mlp.tensors().values()]
    made = reference.forward(torch.from_numpy(x), weights, mlp.spec)
    np.testing.assert_allclose(made.numpy(), exact, atol=1e-9 * (1 + np.abs(exact).max()))
    given = {}
    for part in mlp.spec.record:
        words = x[:, part.start : part.stop]
        values = ids_of(words).astype(np.int64) if part.field.size else words
        given[part.input.name] = torch.from_numpy(values.reshape(9, *part.input.shape))
    result = mlp.to_torch()(**given)  # by the names of the inputs
    heads = result if isinstance(result, tuple) else (result,)
    joined = torch.cat([head.reshape(9, -1) for head in heads], 1).detach().numpy()
    bound = forward_with_bound(mlp, x, PRECISIONS["float32"])
    assert bound.admits(joined).all()


def ranker(rules=(), ragged=False) -> Mlp:
    item = Input(name="item", dtype="int64", fields=(Field(kind="id", size=50, rules=rules),))
    seen = Input(name="seen", dtype="int64", shape=(4,), ragged=ragged, fields=(Field(kind="id", size=50),))
    spec = MlpSpec(
        in_features=8,
        inputs=(item, seen, Input(name="x", shape=(3,))),
        steps=(
            Slice(name="x", input="input", start=5, stop=8),
            Linear(name="deep", input="x", out_features=7),
            Slice(name="item_id", input="input", start=0, stop=1),
            Embedding(name="item", input="item_id", size=50, features=6),
            Slice(name="seen_ids", input="input", start=1, stop=5),
            Bag(name="seen", input="seen_ids", size=50, features=6, weights="item"),
            Concat(name="all", inputs=("deep", "item", "seen")),
            Linear(name="out", input="all", out_features=2),
        ),
    )
    return random_weights(spec)


GIVEN = {
    "item": np.array([3, 49, 0]),
    "seen": np.arange(12).reshape(3, 4),
    "x": np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3),
}


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("rules", [(), (Modulo(divisor=50),)])
def test_a_kernel_takes_inputs_by_name_in_order_or_packed(backend, rules):
    mlp = ranker(rules)
    kernel = kernels.compile(mlp, device="cpu", backend=backend)
    record = mlp.spec.pack(GIVEN)
    expected = kernel(record)
    assert expected.shape == (3, 2)
    np.testing.assert_array_equal(kernel(GIVEN), expected)
    np.testing.assert_array_equal(kernel(dict(reversed(GIVEN.items()))), expected)
    np.testing.assert_array_equal(kernel(tuple(GIVEN.values())), expected)
    np.testing.assert_array_equal(kernel({**GIVEN, "item": GIVEN["item"].astype(np.int32)}), expected)
    as_tensors = kernel({name: torch.from_numpy(value) for name, value in GIVEN.items()})
    assert torch.equal(as_tensors, torch.from_numpy(expected))
    out = np.zeros((3, 2), np.float32)
    assert kernel(GIVEN, out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"item": None}, "input 'item' is missing: expected 'item', 'seen', 'x'"),
        ({"user": np.zeros(3)}, "input 'user' is unknown: expected 'item', 'seen', 'x'"),
        ({"item": np.array([3, 50, 0])}, "input 'item', row 1: expected an id from 0 to 49, got 50"),
        ({"item": np.array([3, 1, -1])}, "input 'item', row 2: expected an id from 0 to 49, got -1"),
        ({"item": np.array([3, 1 << 40, 0])}, f"row 1: expected an id from 0 to 49, got {1 << 40}"),
        ({"item": np.array([3, 4])}, "inputs of different rows: 2 of 'item', 3 of 'seen'"),
        ({"x": np.zeros((3, 4), np.float32)}, r"input 'x': expected shape \(rows, 3\), got \(3, 4\)"),
        ({"item": np.zeros(3)}, "input 'item': expected whole numbers, got float64"),
    ],
)
def test_wrong_inputs_are_refused_in_one_line(change, text):
    given = {name: value for name, value in {**GIVEN, **change}.items() if value is not None}
    kernel = kernels.compile(ranker(), device="cpu", backend="cpu")
    with pytest.raises(KernelInputError, match=text):
        kernel(given)
    with pytest.raises(InputError, match=text):
        ranker().spec.pack(given)


def test_a_packed_row_with_an_id_beyond_its_table_is_refused():
    kernel = kernels.compile(ranker(), device="cpu", backend="cpu")
    record = ranker().spec.pack(GIVEN)
    record.view(np.int32)[2, 3] = 50
    for rows in (record, torch.from_numpy(record)):
        with pytest.raises(
            KernelInputError, match="'seen', row 2, position 2: expected an id from 0 to 49, got 50"
        ):
            kernel(rows)
    with pytest.raises(KernelInputError, match="expected float32 for rows with ids, got float64"):
        kernel(record.astype(np.float64))


def test_a_ragged_bag_counts_what_is_there():
    mlp = ranker(ragged=True)
    kernel = kernels.compile(mlp, device="cpu", backend="cpu")
    given = {**GIVEN, "seen": np.array([[1, 2], [-1, 7], [-1, -1]])}
    expected = evaluate(mlp, mlp.spec.pack(given).astype(np.float64))
    np.testing.assert_allclose(kernel(given), expected, atol=1e-5)


@pytest.mark.parametrize("features", [1, 2, 3, 7, 8, 10, 16, 24, 40, 300])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_rows_of_tables_larger_than_the_cache_are_those_of_the_tables(features, precision):
    """They are fetched ahead, by one id, by several side by side, and in bags shorter and longer than what is ahead."""
    size, widths = 200_000 // features, (1, 3, 5, 40)
    starts = np.cumsum([0, *widths]).tolist()
    inputs = tuple(
        Input(name=f"i{width}", dtype="int64", shape=(width,), fields=(Field(kind="id", size=size),))
        for width in widths
    )
    steps = [
        Slice(name=each.name, input="input", start=start, stop=start + each.width)
        for each, start in zip(inputs, starts, strict=False)
    ]
    options = {"size": size, "features": features, "weights": "table"}
    steps += [Embedding(name=f"e{width}", input=f"i{width}", **options) for width in widths[:2]]
    steps += [Bag(name=f"b{width}", input=f"i{width}", mode="mean", **options) for width in widths[2:]]
    steps.append(Concat(name="out", inputs=("e1", "e3", "b5", "b40")))
    spec = MlpSpec(in_features=starts[-1], inputs=inputs, steps=tuple(steps))
    rng = np.random.default_rng(features)
    mlp = Mlp(spec, {"table.weight": rng.standard_normal((size, features), np.float32)})
    mlp = to_precision(mlp, precision)
    rows = spec.pack({each.name: rng.integers(0, size, (70, each.width)) for each in inputs})
    expected = run(TorchKernel(mlp, None), rows)
    for isa in _cpu.usable_isas():
        kernel = CpuKernel(mlp, 1, isa)
        for count in (1, 7, 33, 70):
            np.testing.assert_allclose(run(kernel, rows[:count]), expected[:count], rtol=1e-5, atol=1e-5)


def test_all_lookups_of_the_inputs_are_one_operation_that_writes_where_the_product_reads():
    placed = place(ranker().spec)
    lookups = [each for each in placed.operations if each.lookups]
    assert [step.name for each in lookups for step in each.lookups] == ["item", "seen"]
    assert len(lookups) == 1
    product = placed.operations[-1]
    whole, column = placed.places[product.source]
    assert placed.places["item"] == (whole, column + 7)
    assert placed.places["seen"] == (whole, column + 13)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (
            (
                Slice(name="ids", input="input", start=0, stop=1),
                Embedding(name="out", input="ids", size=49, features=2),
            ),
            "step 'out': ids may be up to 49, expected at most 48",
        ),
        (
            (
                Slice(name="x", input="input", start=5, stop=8),
                Bucketize(name="b", input="x", count=5),
                Embedding(name="out", input="b", size=5, features=2),
            ),
            "step 'out': ids may be up to 5, expected at most 4",
        ),
    ],
)
def test_a_program_whose_ids_may_be_beyond_a_table_is_refused(steps, text):
    with pytest.raises(ValueError, match=text):
        MlpSpec(in_features=8, inputs=ranker().spec.inputs, steps=steps)


def test_only_a_bag_may_read_ids_that_are_absent():
    steps = (
        Slice(name="ids", input="input", start=1, stop=5),
        Embedding(name="out", input="ids", size=50, features=2),
    )
    with pytest.raises(ValueError, match="step 'out': ids of a ragged input may be absent"):
        MlpSpec(in_features=8, inputs=ranker(ragged=True).spec.inputs, steps=steps)
