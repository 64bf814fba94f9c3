# SPDX-License-Identifier: Apache-2.0
"""The rankers that `bench.kernels.rankers` runs: programs with ids and tables, random weights, and rows to call them
with. Knows no engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.kernels.shapes import Steps
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.inputs import Field, Input
from fused_mlp.models.program.spec import INPUT, Combine, Concat, Linear
from fused_mlp.models.program.steps import Bag, Dot, Embedding, Slice

ROWS = 1 << 15  # of different rows, one after the other: no call finds its table rows in a cache by chance


def _tables(
    made: Steps, count: int, size: int, features: int, floats: int, bag: int = 0
) -> tuple[Any, list[str], str]:
    """(inputs, the looked up values, the floats); `bag`: so many ids for each table, and their sum."""
    shape = (bag,) if bag else ()
    width = max(bag, 1)
    field = Field(kind="id", size=size)
    inputs = [Input(name=f"c{i}", dtype="int64", shape=shape, fields=(field,)) for i in range(count)]
    inputs.append(Input(name="x", shape=(floats,)))
    values = []
    for index in range(count):
        ids = made.add(Slice, INPUT, start=index * width, stop=(index + 1) * width)
        step = {"size": size, "features": features}
        values.append(made.add(Bag, ids, **step) if bag else made.add(Embedding, ids, **step))
    x = made.add(Slice, INPUT, start=count * width, stop=count * width + floats)
    return tuple(inputs), values, x


def _layers(made: Steps, value: str, widths: tuple[int, ...]) -> str:
    for width in widths[:-1]:
        value = made.linear(value, width, "relu")
    return made.linear(value, widths[-1])


def _spec(made: Steps, inputs: tuple[Input, ...]) -> MlpSpec:
    return MlpSpec(in_features=sum(each.words for each in inputs), inputs=inputs, steps=made.steps)


def mlp_ranker(
    count: int, size: int, features: int, floats: int, widths: tuple[int, ...], bag: int = 0
) -> MlpSpec:
    """Tables and floats side by side into an MLP."""
    made = Steps()
    inputs, values, x = _tables(made, count, size, features, floats, bag)
    _layers(made, made.add(Concat, inputs=(*values, x)), widths)
    return _spec(made, inputs)


def dlrm(size: int) -> MlpSpec:
    """MLPerf's shape with smaller tables."""
    made = Steps()
    inputs, values, x = _tables(made, 26, size, 128, 13)
    for width in (512, 256, 128):
        x = made.linear(x, width, "relu")
    crossed = made.add(Dot, made.add(Concat, inputs=(x, *values)), groups=27)
    _layers(made, made.add(Concat, inputs=(x, crossed)), (1024, 1024, 512, 256, 1))
    return _spec(made, inputs)


def dcn_v2(size: int) -> MlpSpec:
    """Three cross layers, x0 * (W x + b) + x, beside two layers of 256."""
    made = Steps()
    inputs, values, x = _tables(made, 26, size, 16, 13)
    first = crossed = made.add(Concat, inputs=(*values, x))
    width = 26 * 16 + 13
    for _ in range(3):
        product = made.add(Linear, crossed, out_features=width)
        crossed = made.sum(made.add(Combine, op="multiply", inputs=(first, product)), crossed)
    deep = made.linear(made.linear(first, 256, "relu"), 256, "relu")
    made.linear(made.add(Concat, inputs=(crossed, deep)), 1)
    return _spec(made, inputs)


RANKERS: dict[str, MlpSpec] = {
    "small, 8 x 1,000 x 8": mlp_ranker(8, 1000, 8, 8, (64, 32, 1)),
    "Criteo-like, 26 x 1,000 x 16": mlp_ranker(26, 1000, 16, 13, (400, 400, 400, 1)),
    "Criteo-like, 26 x 100,000 x 16": mlp_ranker(26, 100_000, 16, 13, (400, 400, 400, 1)),
    "DLRM, 26 x 20,000 x 128": dlrm(20_000),
    "DCN-v2, 26 x 100,000 x 16": dcn_v2(100_000),
    "lookups, 26 x 2,500,000 x 16": mlp_ranker(26, 2_500_000, 16, 13, (1,)),
    "bags, 8 x 20 of 100,000 x 16": mlp_ranker(8, 100_000, 16, 13, (256, 128, 1), bag=20),
}


def build(name: str) -> Mlp:
    """The same weights in every process. Tables are drawn from a small block: drawing gigabytes takes a minute."""
    spec = RANKERS[name]
    generator = np.random.default_rng(1)
    block = generator.standard_normal(1 << 20, np.float32)
    tensors = {}
    for tensor, shape in spec.shapes():
        size = int(np.prod(shape))
        if tensor in spec.tables:
            tensors[tensor] = np.resize(block, size).reshape(shape)
        else:
            tensors[tensor] = generator.standard_normal(shape, np.float32) / np.float32(shape[-1]) ** 0.5
    return Mlp(spec, tensors)


def draw_inputs(name: str) -> dict[str, np.ndarray]:
    """ROWS rows of all inputs, by name."""
    generator = np.random.default_rng(2)
    drawn = {}
    for part in RANKERS[name].record:
        shape = (ROWS, *part.input.shape)
        if part.field.size is None:
            drawn[part.input.name] = generator.standard_normal(shape, np.float32)
        else:
            drawn[part.input.name] = generator.integers(0, part.field.size, shape)
    return drawn


def lines_per_row(name: str) -> int:
    """Cache lines of tables that one row reads."""
    spec = RANKERS[name]
    lookups = [step for step in spec.steps if isinstance(step, (Embedding, Bag))]
    return sum(spec.widths_by_name[step.input] * -(-4 * step.features // 64) for step in lookups)
