# SPDX-License-Identifier: Apache-2.0
"""Steps that read ids, compare or work on groups mean what PyTorch means, in float64."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.arithmetic import as_words
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.inputs import Field, Input
from fused_mlp.models.program.steps import (
    Argmax,
    Bag,
    Bucketize,
    Compare,
    Dot,
    Embedding,
    Number,
    Pick,
    Reduce,
    Repeat,
    Slice,
    Where,
)

ROWS, IDS, SIZE, WIDTH = 9, 4, 11, 6


def run(*steps):
    """The last step's value of a record with ids and floats, float64, and what torch is given: ids, floats, table."""
    generator = np.random.default_rng(0)
    ids = generator.integers(0, SIZE, (ROWS, IDS))
    floats = generator.standard_normal((ROWS, WIDTH))
    floats[0, 0] = np.nan
    spec = MlpSpec(
        in_features=IDS + WIDTH,
        inputs=(
            Input(name="ids", dtype="int64", shape=(IDS,), fields=(Field(kind="id", size=SIZE),)),
            Input(name="x", shape=(WIDTH,)),
        ),
        steps=(
            *(step for step in PARTS if any(step.name in each.sources for each in steps)),
            *steps,
        ),
    )
    tensors = {}
    for name, shape in spec.shapes():
        drawn = generator.standard_normal(shape, np.float32)
        tensors[name] = np.sort(drawn) if name.endswith("boundaries") else drawn
    record = np.concatenate([as_words(ids, np.float64), floats], axis=1)
    made = evaluate(Mlp(spec, tensors), record)
    table = next((torch.from_numpy(each).double() for each in tensors.values()), None)
    return torch.from_numpy(made), torch.from_numpy(ids), torch.from_numpy(floats), table


PARTS = (
    Slice(name="ids", input="input", start=0, stop=IDS),
    Slice(name="x", input="input", start=IDS, stop=IDS + WIDTH),
)


def test_embedding():
    made, ids, _, table = run(Embedding(name="out", input="ids", size=SIZE, features=3))
    assert torch.equal(made, functional.embedding(ids, table).flatten(1))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_bag(mode, padding):
    step = Bag(name="out", input="ids", size=SIZE, features=3, mode=mode, padding=padding)
    made, ids, _, table = run(step)
    torch.testing.assert_close(made, functional.embedding_bag(ids, table, mode=mode, padding_idx=padding))


def test_bag_with_factors():
    weights = Slice(name="w", input="x", start=1, stop=1 + IDS)
    made, ids, x, table = run(weights, Bag(name="out", input="ids", size=SIZE, features=3, factors="w"))
    expected = functional.embedding_bag(
        ids, table, mode="sum", per_sample_weights=x[:, 1 : 1 + IDS].contiguous()
    )
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("right", [False, True])
def test_bucketize(right):
    made, _, x, boundaries = run(
        Bucketize(name="b", input="x", count=5, right=right), Number(name="out", input="b")
    )
    assert torch.equal(made, torch.bucketize(x, boundaries, right=right).double())


def test_argmax_and_pick():
    made, _, x, _ = run(Argmax(name="best", input="x"), Pick(name="out", inputs=("x", "best"), groups=WIDTH))
    torch.testing.assert_close(made, x.gather(1, x.argmax(1, keepdim=True)), equal_nan=True)


@pytest.mark.parametrize("op", ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
def test_comparisons_and_where(op):
    first, second = Slice(name="a", input="x", start=0, stop=3), Slice(name="b", input="x", start=3, stop=6)
    compared = Compare(name="c", op=op, inputs=("a", "b"))
    made, _, x, _ = run(first, second, compared, Where(name="out", inputs=("c", "a", "b")))
    names = {
        "less": "lt",
        "less_equal": "le",
        "greater": "gt",
        "greater_equal": "ge",
        "equal": "eq",
        "not_equal": "ne",
    }
    a, b = x[:, :3], x[:, 3:]
    torch.testing.assert_close(made, torch.where(getattr(torch, names[op])(a, b), a, b), equal_nan=True)


@pytest.mark.parametrize("itself", [False, True])
def test_dot_is_the_lower_triangle_of_all_products(itself):
    made, _, x, _ = run(Dot(name="out", input="x", groups=3, itself=itself))
    vectors = x.reshape(ROWS, 3, 2)
    first, second = torch.tril_indices(3, 3, 0 if itself else -1)
    expected = torch.bmm(vectors, vectors.transpose(1, 2))[:, first, second]
    torch.testing.assert_close(made, expected, equal_nan=True)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("over", ["vectors", "features"])
def test_reduce(mode, over):
    made, _, x, _ = run(Reduce(name="out", input="x", groups=3, mode=mode, over=over))
    function = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[mode]
    expected = function(x.reshape(ROWS, 3, 2), dim=1 if over == "vectors" else 2)
    torch.testing.assert_close(made, expected, equal_nan=True)


def test_repeat():
    made, _, x, _ = run(Repeat(name="out", input="x", groups=3, times=2))
    expected = x.reshape(ROWS, 3, 2).repeat_interleave(2, dim=1).flatten(1)
    torch.testing.assert_close(made, expected, equal_nan=True)
