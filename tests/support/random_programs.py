# SPDX-License-Identifier: Apache-2.0
"""Random programs: any graph of all steps, with weights and values of order one, for tests that compare kernels with
`evaluate`. Needs neither torch nor hypothesis: a hypothesis test draws a seed, or a `st.randoms(...)`."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.inputs import Field, Input, record_of, spread_ids
from fused_mlp.models.program.spec import INPUT, Dtype, Output
from fused_mlp.models.program.steps import (
    Affine,
    Argmax,
    Bag,
    Bucketize,
    Combine,
    Compare,
    Concat,
    Dot,
    Elementwise,
    Embedding,
    Gated,
    Linear,
    Norm,
    Number,
    Pick,
    Reduce,
    Repeat,
    Slice,
    Softmax,
    Step,
    Where,
)

# Widths around the sizes of registers and panels, and primes.
EDGES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 251, 257)
# Every function of a formula. Those that grow or have poles are fed so that values stay of order one: near a pole the
# errors of two right kernels differ by any factor.
FUNCTIONS = (
    "relu",
    "leaky_relu",
    "leaky_relu(x, 0.2)",
    "gelu",
    "gelu_tanh",
    "silu",
    "tanh",
    "sigmoid",
    "elu",
    "elu(x, 0.7)",
    "softplus",
    "softplus(x, 2, 10)",
    "hardswish",
    "mish",
    "clip(x, -0.5, 1.5)",
    "relu6",
    "abs",
    "sin",
    "cos",
    "erf",
    "selu",
    "celu(x, 1.3)",
    "hardtanh",
    "hardsigmoid",
    "softsign",
    "quick_gelu",
    "exp(clip(x, -4, 1))",
    "exp(-(x * x))",
    "log(1 + abs(x))",
    "log1p(abs(x))",
    "expm1(clip(x, -4, 1))",
    "sqrt(0.5 + abs(x))",
    "1 / (1 + x * x)",
    "x * x / (1 + abs(x))",
    "1.7159 * tanh(0.6667 * x)",
    "x + sin(3 * x) * sin(3 * x) / 3",
    "maximum(x, 0.1 * x) - minimum(x, -1)",
    "x * sigmoid(x) + tanh(x) * clip(x, 0, 1)",
)
COMBINATIONS = ("add", "subtract", "multiply", "maximum", "minimum", "divide")


def random_program(
    seed: int | random.Random,
    *,
    steps: int = 12,
    max_width: int = 300,
    max_outputs: int = 3,
    functions: tuple[str, ...] = FUNCTIONS,
    dtype: Dtype = "float32",
    tables: bool = False,
) -> MlpSpec:
    """About `steps` steps, each value used. The same seed gives the same program. `tables`: with several inputs, ids,
    lookups, comparisons and groups."""
    builder = _RankerBuilder if tables else _Builder
    return builder(
        seed if isinstance(seed, random.Random) else random.Random(seed), max_width, functions
    ).build(steps, max_outputs, dtype)


def random_weights(spec: MlpSpec, seed: int = 0) -> Mlp:
    """Weights that keep values of order one: of matrices 1 / sqrt(in) each, of norms around one."""
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, shape in spec.shapes():
        values = generator.standard_normal(shape)
        if name in spec.tables:
            pass
        elif name.endswith(".boundaries"):
            values.sort()
        elif len(shape) == 2:
            values /= shape[1] ** 0.5
        elif name.endswith(".weight"):
            values = 1 + 0.3 * values
        else:
            values *= 0.3
        tensors[name] = values.astype(np.float32)
    return Mlp(spec, tensors)


def random_mlp(seed: int, **options: object) -> Mlp:
    """A random program with random weights."""
    return random_weights(random_program(seed, **options), seed)  # type: ignore[arg-type]


def random_rows(mlp: Mlp, rows: int, seed: int = 0) -> np.ndarray:
    """x: (rows, in_features) float32"""
    x = np.random.default_rng(seed).standard_normal((rows, mlp.spec.in_features), dtype=np.float32)
    spread_ids(mlp.spec.record, x, seed)
    return x


class _Builder:
    def __init__(self, rng: random.Random, max_width: int, functions: tuple[str, ...]) -> None:
        self.rng = rng
        self.max_width = max_width
        self.functions = functions
        self.steps: list[Step] = []
        self.widths: dict[str, int] = {INPUT: self.width()}
        self.unused: list[str] = []

    inputs: tuple[Input, ...] | None = None

    def makers(self) -> list[Callable[[], None]]:
        return (
            [self.linear] * 5
            + [self.gated, self.concat, self.slice, self.softmax, self.affine]
            + [self.elementwise] * 3
            + [self.norm] * 3
            + [self.combine] * 3
        )

    def build(self, steps: int, max_outputs: int, dtype: Dtype) -> MlpSpec:
        makers = self.makers()
        in_features = self.widths[INPUT] if self.inputs is None else record_of(self.inputs)[-1].stop
        while len(self.steps) < steps or not self.unused:
            self.rng.choice(makers)()
        heads = self.rng.randint(1, max_outputs)
        while len(self.unused) > heads:
            count = min(len(self.unused), 1024, len(self.unused) - heads + 1)
            self.add(Concat(name=self.name("tail"), inputs=tuple(self.unused[:count])))
        values = list(self.unused)
        if self.rng.random() < 0.25:  # a value that is an output and is read by a step, or is an output twice
            values.append(self.rng.choice([name for name in self.widths if name != INPUT]))
        outputs = tuple(
            Output(
                name=f"out{index}", value=value, squeeze=self.widths[value] == 1 and self.rng.random() < 0.5
            )
            for index, value in enumerate(values)
        )
        return MlpSpec(
            in_features=in_features, inputs=self.inputs, steps=tuple(self.steps), outputs=outputs, dtype=dtype
        )

    def width(self) -> int:
        edges = [width for width in EDGES if width <= self.max_width]
        return self.rng.choice(edges) if self.rng.random() < 0.5 else self.rng.randint(1, self.max_width)

    def name(self, kind: str) -> str:
        return f"blocks.{len(self.steps)}.{kind}"

    def function(self) -> str:
        return self.rng.choice(self.functions)

    def pick(self) -> str:
        """A value to read: mostly one that nothing has read yet."""
        if self.unused and self.rng.random() < 0.7:
            return self.rng.choice(self.unused)
        return self.rng.choice(list(self.widths))

    def add(self, step: Step) -> str:
        self.widths[step.name] = step.width(tuple(self.widths[source] for source in step.sources))
        self.steps.append(step)
        self.unused = [name for name in self.unused if name not in step.sources] + [step.name]
        return step.name

    def linear(self) -> None:
        source = self.pick()
        twins = [
            step
            for step in self.steps
            if isinstance(step, Linear)
            and step.weights is None
            and self.widths[step.input] == self.widths[source]
        ]
        if twins and self.rng.random() < 0.2:  # a module that is called twice
            twin = self.rng.choice(twins)
            self.add(
                Linear(
                    name=self.name("again"),
                    input=source,
                    out_features=twin.out_features,
                    bias=twin.bias,
                    weights=twin.name,
                )
            )
            return
        self.add(
            Linear(
                name=self.name("fc"), input=source, out_features=self.width(), bias=self.rng.random() < 0.7
            )
        )

    def linear_to(self, source: str, width: int) -> str:
        return self.add(Linear(name=self.name("to"), input=source, out_features=width))

    def gated(self) -> None:
        self.add(
            Gated(
                name=self.name("glu"),
                input=self.pick(),
                out_features=self.width(),
                bias=self.rng.random() < 0.7,
                function=self.rng.choice(["x", self.function()]),
            )
        )

    def elementwise(self) -> None:
        self.add(Elementwise(name=self.name("act"), input=self.pick(), function=self.function()))

    def norm(self) -> None:
        # A norm of few features, or with a small eps, turns noise into results of order one.
        self.add(
            Norm(
                name=self.name("norm"),
                input=self.pick(),
                kind=self.rng.choice(["layer", "rms", "l2"]),
                eps=self.rng.choice([0.5, 0.1]),
                weight=self.rng.random() < 0.7,
                bias=self.rng.random() < 0.7,
            )
        )

    def affine(self) -> None:
        weight = self.rng.random() < 0.7
        self.add(
            Affine(
                name=self.name("scale"),
                input=self.pick(),
                weight=weight,
                bias=not weight or self.rng.random() < 0.7,
            )
        )

    def softmax(self) -> None:
        self.add(
            Softmax(name=self.name("soft"), input=self.pick(), op=self.rng.choice(["softmax", "log_softmax"]))
        )

    def combine(self) -> None:
        first = self.pick()
        same = [name for name, width in self.widths.items() if width == self.widths[first]]
        second = self.rng.choice(same)
        if second == first and self.rng.random() < 0.8:
            second = self.linear_to(self.pick(), self.widths[first])
        op = self.rng.choice(COMBINATIONS)
        if op == "divide":
            second = self.add(Elementwise(name=self.name("positive"), input=second, function="1 + abs(x)"))
        pair = (first, second) if op == "divide" or self.rng.random() < 0.5 else (second, first)
        self.add(Combine(name=self.name(op), op=op, inputs=pair))

    def concat(self) -> None:
        inputs = tuple(self.pick() for _ in range(self.rng.randint(2, 4)))
        if sum(self.widths[name] for name in inputs) <= 2 * self.max_width:
            self.add(Concat(name=self.name("cat"), inputs=inputs))

    def slice(self) -> None:
        source = self.pick()
        start = self.rng.randrange(self.widths[source])
        stop = self.rng.randint(start + 1, self.widths[source])
        self.add(Slice(name=self.name("part"), input=source, start=start, stop=stop))


class _RankerBuilder(_Builder):
    """Programs with tables. Results that jump (comparisons, buckets, the largest value) are of inputs only: of computed
    values, two right kernels may differ."""

    def __init__(self, rng: random.Random, max_width: int, functions: tuple[str, ...]) -> None:
        super().__init__(rng, max_width, functions)
        floats = max(4, self.width())
        inputs = [Input(name="x", shape=(floats,))]
        for index in range(rng.randint(1, 6)):
            kind = rng.choice(["one", "several", "ragged"])
            shape = () if kind == "one" else (rng.randint(1, 40),)
            field = Field(kind="id", size=rng.choice([1, 2, 37, 1000]))
            inputs.append(
                Input(name=f"id{index}", dtype="int64", shape=shape, ragged=kind == "ragged", fields=(field,))
            )
        rng.shuffle(inputs)
        self.inputs = tuple(inputs)
        self.widths = {}
        self.counts: dict[str, int] = {}  # of values of ids
        for part in record_of(self.inputs):
            if part.input.name == "x":
                self.steps.append(Slice(name="x", input=INPUT, start=part.start, stop=part.stop))
                self.widths["x"] = floats
                self.unused = ["x"]

    def makers(self) -> list[Callable[[], None]]:
        return (
            super().makers()
            + [self.lookup] * 8
            + [self.group] * 4
            + [self.where, self.compare, self.number, self.bucket, self.label]
        )

    def add(self, step: Step) -> str:
        """Values of ids are read at once, by the step that follows: `widths` has only those of floats."""
        floats = dict(self.widths)
        self.widths |= self.counts
        name = super().add(step)
        width = self.widths[name]
        self.widths = floats
        if step.op in ("bucketize", "argmax"):
            self.unused.remove(name)
            self.counts[name] = width
        else:
            self.widths[name] = width
        return name

    def ids(self, ragged: bool = True) -> tuple[str, int, int]:
        """Ids of an input: (name, how many, size)."""
        parts = [
            part
            for part in record_of(self.inputs or ())
            if part.field.size and (ragged or not part.input.ragged)
        ]
        if not parts:
            return "", 0, 0
        part = self.rng.choice(parts)
        start = self.rng.randrange(part.start, part.stop)
        stop = self.rng.randint(start + 1, part.stop)
        name = self.name("ids")
        self.steps.append(Slice(name=name, input=INPUT, start=start, stop=stop))
        self.counts[name] = stop - start
        return name, stop - start, part.field.size or 0

    def lookup(self) -> None:
        bag = self.rng.random() < 0.5
        name, count, size = self.ids(ragged=bag)
        if not count:
            return
        self.add_lookup(name, count, size, bag)

    def add_lookup(self, ids: str, count: int, size: int, bag: bool) -> None:
        features = self.rng.choice([1, 3, 4, 8, 10, 16, 17, 64, 65, 100])
        common = {"input": ids, "size": size + self.rng.randint(0, 3), "features": features}
        twins = [step for step in self.steps if isinstance(step, (Embedding, Bag)) and step.size >= size]
        if twins and self.rng.random() < 0.3:  # a table that is used twice
            twin = self.rng.choice(twins)
            common = {"input": ids, "size": twin.size, "features": twin.features, "weights": twin.prefix}
        if not bag:
            if count * common["features"] <= 4 * self.max_width:
                self.add(Embedding(name=self.name("table"), **common))
            else:
                self.add(Bag(name=self.name("bag"), mode="mean", **common))
            return
        mode = self.rng.choice(["sum", "mean", "max"])
        factors = None
        if mode == "sum" and self.rng.random() < 0.4:
            factors = self.linear_to(self.pick(), count)
        padding = self.rng.choice([None, 0, size - 1])
        self.add(Bag(name=self.name("bag"), mode=mode, padding=padding, factors=factors, **common))

    def group(self) -> None:
        groups, length = self.rng.randint(2, 9), self.rng.choice([1, 3, 8, 16, 17, 40])
        source = self.linear_to(self.pick(), groups * length)
        kind = self.rng.choice([Dot, Reduce, Repeat])
        if kind is Dot:
            self.add(Dot(name=self.name("dot"), input=source, groups=groups, itself=self.rng.random() < 0.5))
        elif kind is Reduce:
            mode, over = self.rng.choice(["sum", "mean", "max"]), self.rng.choice(["vectors", "features"])
            self.add(Reduce(name=self.name("sum"), input=source, groups=groups, mode=mode, over=over))
        else:
            self.add(
                Repeat(name=self.name("again"), input=source, groups=groups, times=self.rng.randint(1, 3))
            )

    def compared(self) -> str:
        width = self.widths["x"] // 2
        first = self.add(Slice(name=self.name("a"), input="x", start=0, stop=width))
        second = self.add(Slice(name=self.name("b"), input="x", start=width, stop=2 * width))
        op = self.rng.choice(["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
        return self.add(Compare(name=self.name(op), op=op, inputs=(first, second)))

    def compare(self) -> None:
        self.compared()

    def where(self) -> None:
        condition = self.compared()
        width = self.widths[condition]
        yes, no = self.linear_to(self.pick(), width), self.linear_to(self.pick(), width)
        self.add(Where(name=self.name("where"), inputs=(condition, yes, no)))

    def number(self) -> None:
        name, count, _ = self.ids()
        if count:
            made = self.add(Number(name=self.name("number"), input=name))
            self.add(Elementwise(name=self.name("scaled"), input=made, function="0.001 * x"))

    def bucket(self) -> None:
        count = self.rng.choice([1, 2, 7, 40])
        name = self.add(
            Bucketize(name=self.name("bucket"), input="x", count=count, right=self.rng.random() < 0.5)
        )
        self.add_lookup(name, self.widths["x"], count + 1, self.rng.random() < 0.5)

    def label(self) -> None:
        groups = self.widths["x"]
        best = self.add(Argmax(name=self.name("best"), input="x"))
        value = self.linear_to(self.pick(), groups * self.rng.randint(1, 5))
        self.add(Pick(name=self.name("picked"), inputs=(value, best), groups=groups))
