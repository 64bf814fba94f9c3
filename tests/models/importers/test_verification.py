# SPDX-License-Identifier: Apache-2.0
"""The check that every import ends with: an answer is compared with others of its own size."""

import numpy as np
import pytest

from fused_mlp.models import ModelLoadError
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Constant, Source
from fused_mlp.models.importers.verification import verify

WEIGHTS = {
    "large": 1e6 * np.random.default_rng(0).normal(0, 1, (3, 4)),
    "small": 1e-3 * np.random.default_rng(1).normal(0, 1, (3, 4)),
}


def exact(**weights):
    """A program with a head for each of the weights."""
    builder = Builder(4)
    for name, weight in weights.items():
        builder.output(name, builder.linear(builder.input, Constant(weight)))
    builder.finish("float32")
    return builder.exact()


def source(**weights):
    return lambda x: [x @ weight.T for weight in weights.values()]


def test_a_program_that_is_right_passes():
    verify(exact(**WEIGHTS), source(**WEIGHTS))


def test_an_error_in_a_small_head_is_seen_beside_a_large_one():
    wrong = WEIGHTS | {"small": WEIGHTS["small"] * (1 + 1e-4)}
    with pytest.raises(ModelLoadError, match="does not compute what the model does"):
        verify(exact(**wrong), source(**WEIGHTS))


def test_an_error_in_a_small_column_is_seen_beside_large_ones():
    joined = np.concatenate(list(WEIGHTS.values())) * [[1], [1], [1], [1e5], [1e5], [1e5]]
    wrong = joined * [[1], [1], [1], [1], [1], [1 + 1e-3]]
    with pytest.raises(ModelLoadError, match="does not compute what the model does"):
        verify(exact(both=wrong), source(both=joined))


def test_what_is_left_when_large_numbers_cancel_out_is_no_error():
    weights = {"left": np.array([[1e8, 1e8, 1.0, 1.0], [1e8, 1e8, 0.0, 0.0]])}
    difference = np.array([[1.0, -1.0]])

    def run(x):
        big = x @ weights["left"].T
        return [np.concatenate([big, big @ difference.T], axis=1)]

    builder = Builder(4)
    big = builder.linear(builder.input, Constant(weights["left"]))
    rest = builder.linear(builder.input, Constant(difference @ weights["left"]))
    builder.output("y", builder.concat([big, rest], 1))
    builder.finish("float32")
    verify(builder.exact(), run)


def ids_program(rule):
    """A table of 5 rows behind a remainder of `rule`."""
    builder = Builder(sources=[Source("item", (), "int64")])
    (item,) = builder.inputs
    if rule:
        item = builder.remainder(item, np.array(rule), truncated=False)
    builder.output("y", builder.embedding(item, Constant(TABLE)))
    builder.finish("float32")
    return builder.exact()


TABLE = np.random.default_rng(2).normal(0, 1, (5, 3))


def test_ids_beyond_the_table_follow_the_models_rule():
    verify(ids_program(5), lambda item: [TABLE[item[:, 0] % 5]])
    with pytest.raises(ModelLoadError, match="does not compute what the model does"):
        verify(ids_program(5), lambda item: [TABLE[np.clip(item[:, 0], 0, 4)]])


def test_a_rule_that_was_not_read_is_found_out():
    verify(ids_program(None), lambda item: [TABLE[item[:, 0]]])
    with pytest.raises(ModelLoadError, match="it answers id 5 of input 'item', which is beyond its table"):
        verify(ids_program(None), lambda item: [TABLE[np.minimum(item[:, 0], 4)]])
