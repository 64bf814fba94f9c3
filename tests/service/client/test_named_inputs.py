# SPDX-License-Identifier: Apache-2.0
"""What callers hand over as named inputs, and the tensors that are sent."""

from __future__ import annotations

import numpy as np
import pytest

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.service.client.named_inputs import encode_named


def sent(x: object) -> dict[str, np.ndarray]:
    dtypes = {pb.INT64: np.int64, pb.INT32: np.int32, pb.FP64: np.float64, pb.FP32: np.float32}
    return {
        each.name: np.frombuffer(each.tensor.data, dtypes[each.tensor.dtype]).reshape(each.tensor.shape)
        for each in encode_named(x)
    }


@pytest.mark.parametrize(
    "x",
    [
        {"history": [[3, 5], [], [7]]},
        [{"history": [3, 5]}, {"history": []}, {"history": [7]}],
        {"history": [np.array([3, 5]), np.array([], np.int64), np.array([7])]},
    ],
    ids=["dict", "list of dicts", "arrays"],
)
def test_bags_of_different_lengths_are_filled_with_minus_one(x: object) -> None:
    np.testing.assert_array_equal(sent(x)["history"], [[3, 5], [-1, -1], [7, -1]])


def test_rows_of_one_length_are_sent_as_they_are() -> None:
    np.testing.assert_array_equal(sent({"ids": [[1, 2], [3, 4]]})["ids"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(sent({"x": [[0.5], [1.5]]})["x"], [[0.5], [1.5]])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "input 'u': expected numbers or strings, got None: fill what is missing"),
        (["a", None], "input 'u': expected numbers or strings, got None: fill what is missing"),
        (
            [[0.5], [1.0, 2.0]],
            "input 'u': expected rows of one length: only lists of ids may differ in length",
        ),
        (np.array([1, 1 << 63], np.uint64), f"input 'u': expected whole numbers below 2^63, got {1 << 63}"),
    ],
    ids=["none", "a missing word", "ragged floats", "beyond 63 bits"],
)
def test_what_cannot_be_sent_is_told_in_one_line(given: object, text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        encode_named({"u": given})
    assert str(refused.value) == text
