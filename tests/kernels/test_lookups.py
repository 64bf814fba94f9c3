# SPDX-License-Identifier: Apache-2.0
"""Lookups and the rest of a program compute together what the whole does."""

import numpy as np
import pytest

from fused_mlp.kernels.lookups import lookups_of, unsupported
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.arithmetic import ids_of
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.inputs import Input, spread_ids
from fused_mlp.models.program.steps import Concat, Dot, Linear, Slice
from tests.kernels.cuda.random_models import make_mlp
from tests.support.lookup_programs import RANKERS, head, part


def dense(mlp, parts, record):
    """What the lookups make, from their description alone."""
    tensors = mlp.tensors()
    columns = []
    for each in parts:
        words = record[:, each.word : each.word + each.count]
        if not each.table:
            columns.append(words)
            continue
        taken = ids_of(words)
        there = (taken != -1) & (taken != each.padding)
        rows = tensors[each.table][np.where(there, taken, 0)].astype(np.float64)
        if each.factors >= 0:
            rows = rows * record[:, each.factors : each.factors + each.count, None]
        low = np.where(there[..., None], rows, -np.inf if each.mode == "max" else 0)
        made = low.max(1) if each.mode == "max" else low.sum(1)
        if each.mode == "mean":
            made = made / np.maximum(there.sum(1, keepdims=True), 1)
        columns.append(np.where(there.any(1, keepdims=True), made, 0))
    return np.concatenate(columns, axis=1)


@pytest.mark.parametrize("name", RANKERS)
def test_both_halves_together_are_the_program(name):
    mlp = make_mlp(RANKERS[name])
    record = np.random.default_rng(0).standard_normal((40, mlp.spec.in_features)).astype(np.float32)
    spread_ids(mlp.spec.record, record)
    lookups = lookups_of(mlp.spec)
    rows = dense(mlp, lookups.parts, record.astype(np.float64))
    assert rows.shape[1] == lookups.rest.in_features
    made = evaluate(lookups.rest_of(mlp), rows)
    np.testing.assert_allclose(made, evaluate(mlp, record.astype(np.float64)), rtol=1e-12, atol=1e-12)


def test_the_first_concat_copies_nothing():
    assert not any(isinstance(step, (Concat, Slice)) for step in lookups_of(RANKERS["wide"]).rest.steps)


def test_a_program_of_floats_has_no_lookups():
    two = (Input(name="a", shape=(2,)), Input(name="b"))
    spec = MlpSpec(in_features=3, inputs=two, steps=(Linear(name="out", input="input", out_features=1),))
    assert lookups_of(spec) is None
    assert unsupported(spec) is None


def test_a_step_without_a_kernel_is_named():
    steps = (part("x", 2, 4), Dot(name="pairs", input="x", groups=2), *head("pairs", 1))
    spec = MlpSpec(in_features=4, steps=steps)
    assert unsupported(spec) == "it has no dot, which step 'pairs' is"
