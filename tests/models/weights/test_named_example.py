# SPDX-License-Identifier: Apache-2.0
"""The example row of a model with named inputs: a dict, checked as a request would be, and kept in its files."""

from pathlib import Path

import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.models import Mlp, MlpSpec, ModelLoadError
from fused_mlp.models.program.inputs import Field, Input
from fused_mlp.models.program.steps import Linear, Slice
from tests.support.rankers import EXAMPLE, ranker


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    models.save(ranker(), tmp_path / "1")
    loaded = models.load(tmp_path / "1").example
    assert loaded == {name: tuple(np.ravel(values).tolist()) for name, values in EXAMPLE.items()}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"user": 100}, "example: input 'user', row 0: expected an id from 0 to 99, got 100"),
        ({"x": [1.0]}, r"example: input 'x': expected shape \(rows, 3\), got \(1, 1\)"),
        ({"who": 1}, "example: expected a row of each of the inputs"),
    ],
)
def test_one_that_no_request_could_send_is_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ModelLoadError, match=text):
        ranker().annotated(example={**EXAMPLE, **change})


def test_a_record_is_read_back_where_it_can_be() -> None:
    spec = MlpSpec(
        in_features=4,
        inputs=(
            Input(name="id", dtype="int64", fields=(Field(kind="id", size=9),)),
            Input(
                name="word",
                dtype="string",
                vocabulary=("a", "b"),
                unknown=2,
                fields=(Field(kind="id", size=3),),
            ),
            Input(name="x", shape=(2,)),
        ),
        steps=(
            Slice(name="floats", input="input", start=2, stop=4),
            Linear(name="out", input="floats", out_features=1),
        ),
    )
    tensors = {name: np.zeros(shape, np.float32) for name, shape in spec.shapes()}

    def example(*ids: int) -> object:
        record = np.array([*ids, 0, 0], np.int32).view(np.float32)
        record[2:] = 0.5
        return Mlp(spec, tensors, example=record.tolist()).example

    assert example(8, 1) == {"id": (8,), "word": ("b",), "x": (0.5, 0.5)}
    assert example(8, 2) is None  # of any unknown word
