# SPDX-License-Identifier: Apache-2.0
"""Small programs with ids and tables, as rankers have them."""

from __future__ import annotations

from fused_mlp.models import MlpSpec
from fused_mlp.models.program.inputs import Field, Input
from fused_mlp.models.program.steps import Bag, Combine, Concat, Elementwise, Embedding, Linear, Slice, Step


def ids(name: str, size: int, count: int = 0, *, ragged: bool = False) -> Input:
    shape = (count,) if count else ()
    return Input(name=name, dtype="int64", shape=shape, ragged=ragged, fields=(Field(kind="id", size=size),))


def part(name: str, start: int, stop: int) -> Slice:
    return Slice(name=name, input="input", start=start, stop=stop)


def head(source: str, *widths: int) -> tuple[Step, ...]:
    """Layers of these widths, with relu between them."""
    steps: list[Step] = []
    for index, width in enumerate(widths):
        steps.append(Linear(name=f"fc{index}", input=source, out_features=width))
        source = f"fc{index}"
        if index < len(widths) - 1:
            steps.append(Elementwise(name=f"relu{index}", input=source, function="relu"))
            source = f"relu{index}"
    return tuple(steps)


# By name. `wide`: three tables and floats side by side. `shared`: one table for two inputs, multiplied. `bags`: every
# mode, padding, factors, ragged rows, and floats that are read twice.
RANKERS: dict[str, MlpSpec] = {
    "wide": MlpSpec(
        in_features=8,
        inputs=(ids("user", 100), ids("item", 50), Input(name="x", shape=(3,)), ids("tags", 7, 3)),
        steps=(
            part("user_id", 0, 1),
            part("item_id", 1, 2),
            part("x", 2, 5),
            part("tag_ids", 5, 8),
            Embedding(name="user", input="user_id", size=100, features=16),
            Embedding(name="item", input="item_id", size=50, features=5),
            Embedding(name="tags", input="tag_ids", size=7, features=3),
            Concat(name="all", inputs=("user", "item", "tags", "x")),
            *head("all", 20, 9, 1),
        ),
    ),
    "shared": MlpSpec(
        in_features=2,
        inputs=(ids("left", 30), ids("right", 30)),
        steps=(
            part("left_id", 0, 1),
            part("right_id", 1, 2),
            Embedding(name="left", input="left_id", size=30, features=33),
            Embedding(name="right", input="right_id", size=30, features=33, weights="left"),
            Combine(name="both", op="multiply", inputs=("left", "right")),
            *head("both", 17, 2),
        ),
    ),
    "bags": MlpSpec(
        in_features=14,
        inputs=(ids("tags", 40, 5, ragged=True), ids("seen", 12, 4), Input(name="x", shape=(5,))),
        steps=(
            part("tag_ids", 0, 5),
            part("seen_ids", 5, 9),
            part("x", 9, 14),
            part("weights", 9, 13),
            Bag(name="mean", input="tag_ids", size=40, features=6, mode="mean"),
            Bag(name="max", input="tag_ids", size=40, features=6, mode="max", weights="mean"),
            Bag(name="sum", input="seen_ids", size=12, features=4, padding=0),
            Bag(name="weighted", input="seen_ids", size=12, features=4, factors="weights", weights="sum"),
            Concat(name="some", inputs=("x", "mean", "sum")),
            Linear(name="first", input="some", out_features=10),
            Concat(name="rest", inputs=("first", "max", "weighted")),
            *head("rest", 12, 3),
        ),
    ),
}
