# SPDX-License-Identifier: Apache-2.0
"""A small ranker with one input of every kind: ids, a ragged bag, a word, a time that is read twice, floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.inputs import Add, Field, Input, Modulo
from fused_mlp.models.program.spec import Output
from fused_mlp.models.program.steps import Bag, Concat, Embedding, Linear, Slice

COUNTRIES = ("de", "fr", "jp")
EXAMPLE = {
    "user": 7,
    "item": [3],
    "history": [1, 2],
    "country": "fr",
    "time": 1_700_000_060,
    "x": [0.5, -1.0, 2.0],
}


def _ids(name: str, size: int, **options: Any) -> Input:
    return Input(name=name, dtype="int64", fields=(Field(kind="id", size=size),), **options)


def ranker(users: int = 100) -> Mlp:
    inputs = (
        _ids("user", users),
        _ids("item", 50),
        _ids("history", 50, shape=(4,), ragged=True),
        Input(
            name="country",
            dtype="string",
            vocabulary=COUNTRIES,
            unknown=3,
            fields=(Field(kind="id", size=4),),
        ),
        Input(
            name="time",
            dtype="int64",
            fields=(
                Field(kind="id", size=24, rules=(Modulo(divisor=24),)),
                Field(rules=(Add(values=(-1_700_000_000,)),)),
            ),
        ),
        Input(name="x", shape=(3,)),
    )
    spec = MlpSpec(
        in_features=12,
        inputs=inputs,
        steps=(
            Slice(name="user_id", input="input", start=0, stop=1),
            Embedding(name="user", input="user_id", size=users, features=8),
            Slice(name="item_id", input="input", start=1, stop=2),
            Embedding(name="item", input="item_id", size=50, features=8),
            Slice(name="history_ids", input="input", start=2, stop=6),
            Bag(name="history", input="history_ids", size=50, features=8, mode="mean", weights="item"),
            Slice(name="country_id", input="input", start=6, stop=7),
            Embedding(name="country", input="country_id", size=4, features=2),
            Slice(name="hour_id", input="input", start=7, stop=8),
            Embedding(name="hour", input="hour_id", size=24, features=2),
            Slice(name="floats", input="input", start=8, stop=12),
            Concat(name="all", inputs=("user", "item", "history", "country", "hour", "floats")),
            Linear(name="score", input="all", out_features=1),
        ),
        outputs=(Output(name="score", value="score", squeeze=True),),
    )
    rng = np.random.default_rng(3)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) / 4 for name, shape in spec.shapes()}
    return Mlp(spec, tensors, example=EXAMPLE)


def rows(count: int, users: int = 100, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "user": rng.integers(0, users, count),
        "item": rng.integers(0, 50, (count, 1)).astype(np.int32),
        "history": rng.integers(-1, 50, (count, 3)),
        "country": [str(word) for word in rng.choice([*COUNTRIES, "xx"], count)],
        "time": 1_700_000_000 + rng.integers(0, 100, count),
        "x": rng.standard_normal((count, 3)).astype(np.float32),
    }
