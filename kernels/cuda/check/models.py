# SPDX-License-Identifier: Apache-2.0
"""The models that the ahead-of-time check compiles kernels for, and those whose launches it counts. Data only;
imports no triton."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any, Literal, TypeVar, get_args

from fused_mlp.models import Activation, Dtype, MlpSpec
from fused_mlp.models.program.inputs import Field, Input
from fused_mlp.models.program.spec import INPUT

# Every function that a formula may be made of, and formulas of several.
FUNCTIONS: tuple[str, ...] = (
    *get_args(Activation),
    "elu(x, 0.7)",
    "softplus(x, 2, 10)",
    "clip(x, -1, 1)",
    "abs",
    "exp",
    "log",
    "sqrt",
    "sin",
    "cos",
    "erf",
    "log1p",
    "expm1",
    "sign",
    "quick_gelu",
    "maximum(x, 0.1 * x) - minimum(x, -1)",
    "x * x / (1 + abs(x))",
)
SOFTMAXES: tuple[Literal["softmax", "log_softmax"], ...] = ("softmax", "log_softmax")
NORMS: tuple[Literal["layer", "rms", "l2"], ...] = ("layer", "rms", "l2")
Item = TypeVar("Item")


class Tour:
    """Deals out functions in turn, so that the few kernels of an architecture between them have each one
    plain, as a gate and after the last product; `start` shifts it from architecture to architecture."""

    def __init__(self, start: int) -> None:
        self.plain = _from(FUNCTIONS, start)
        self.gate = _from(FUNCTIONS, start)
        self.output = _from((*SOFTMAXES, *FUNCTIONS), start)
        self.softmax = _from(SOFTMAXES, start)
        self.norm = _from(NORMS, start)


def _from(items: tuple[Item, ...], start: int) -> Iterator[Item]:
    return islice(cycle(items), start % len(items), None)


class Sketch:
    """A program, written down step by step. Each method adds a step and returns the name of its value."""

    def __init__(self, in_features: int, dtype: Dtype, inputs: tuple[Input, ...] | None = None) -> None:
        self._fields: dict[str, Any] = {"in_features": in_features, "dtype": dtype, "inputs": inputs}
        self._steps: list[dict[str, Any]] = []

    def linear(self, source: str, width: int, function: str = "identity") -> str:
        return self.function(self._add("linear", input=source, out_features=width), function)

    def gated(self, source: str, width: int, function: str) -> str:
        return self._add("gated", input=source, out_features=width, function=function)

    def function(self, source: str, function: str) -> str:
        """A function or a softmax."""
        if function == "identity":
            return source
        if function in SOFTMAXES:
            return self._add(function, input=source)
        return self._add("elementwise", input=source, function=function)

    def norm(self, source: str, kind: str) -> str:
        return self._add("norm", input=source, kind=kind)

    def affine(self, source: str) -> str:
        return self._add("affine", input=source)

    def combine(self, op: str, *sources: str) -> str:
        return self._add(op, inputs=sources)

    def lookup(self, op: str, ids: str, size: int, features: int, **options: str) -> str:
        return self._add(op, input=ids, size=size, features=features, **options)

    def part(self, source: str, start: int, stop: int) -> str:
        return self._add("slice", input=source, start=start, stop=stop)

    def spec(self, **outputs: str) -> MlpSpec:
        named = [{"name": name, "value": value} for name, value in outputs.items()]
        return MlpSpec.model_validate({**self._fields, "steps": self._steps, "outputs": named})

    def _add(self, op: str, **fields: Any) -> str:
        name = f"{len(self._steps)}.{op}"
        self._steps.append({"op": op, "name": name, **fields})
        return name


def chain(
    widths: Sequence[int], functions: Sequence[str], output: str, dtype: Dtype, gated: bool = False
) -> MlpSpec:
    """Products with a function each; the last has one of its own only if it is gated, and `output` after it."""
    sketch = Sketch(widths[0], dtype)
    value = INPUT
    for width, function in zip(widths[1:], [*functions, ""], strict=False):
        value = (
            sketch.gated(value, width, function)
            if gated and function
            else sketch.linear(value, width, function or "identity")
        )
    return sketch.spec(output=sketch.function(value, output))


def plain_whole(width: int, dtype: Dtype, tour: Tour) -> MlpSpec:
    """A wide input, and a last layer whose rows one tile holds."""
    hidden = 1 + _between(width)
    functions = [next(tour.plain) for _ in range(hidden)]
    return chain((784, *[width] * hidden, 10), functions, next(tour.output), dtype)


def gated_whole(width: int, dtype: Dtype, tour: Tour) -> MlpSpec:
    """The heaviest chain: two accumulators in every layer, exact GELU where most values are live, a softmax over more
    columns than one tile holds; odd widths leave masks and scalar loads in place."""
    between = 1 if width > 128 else 2  # two alike: such layers may run in a loop
    functions = [next(tour.gate), *["gelu"] * between, next(tour.gate)]
    widths = (783, *[width - 1] * (1 + between), 199)
    return chain(widths, functions, next(tour.softmax), dtype, gated=True)


def _between(width: int) -> int:
    """Layers between first and last. (Once more is the same code again, and in the wide ones a third of the
    time to compile.)"""
    return 1 if width > 64 else 2


def normed_whole(width: int, dtype: Dtype, tour: Tour) -> MlpSpec:
    """Norms as wide as they can be: after a product with the input added, and after a gate; a softmax; two heads."""
    sketch = Sketch(width - 1, dtype)
    h = sketch.norm(sketch.combine("add", sketch.linear(INPUT, width - 1), INPUT), next(tour.norm))
    h = sketch.gated(sketch.function(h, "gelu"), width - 1, next(tour.gate))
    h = sketch.function(sketch.norm(h, next(tour.norm)), next(tour.softmax))
    return sketch.spec(pi=sketch.linear(h, 10, "softmax"), log_pi=sketch.linear(h, 7, "log_softmax"))


def residual_whole(room: int, dtype: Dtype, tour: Tour) -> MlpSpec:
    """Pre-norm residual block over `room` columns in all: a quarter each for what is added and for its norm, half for
    the hidden layer; then a norm of a concat, the halves of which gate each other."""
    width = room // 4 - 1
    sketch = Sketch(99, dtype)
    x = sketch.linear(INPUT, width)
    h = sketch.linear(sketch.norm(x, "layer"), room // 2 - 1, "gelu")
    x = sketch.combine("add", x, sketch.linear(h, width, next(tour.plain)))
    h = sketch.norm(sketch.combine("concat", sketch.linear(x, width), x), next(tour.norm))
    h = sketch.combine("multiply", sketch.part(h, 0, width), sketch.part(h, width, 2 * width))
    return sketch.spec(output=sketch.linear(h, 3))


def plain_layers(dtype: Dtype, tour: Tour) -> MlpSpec:
    """A hidden layer, and a last one wider than a tile."""
    output = next(name for name in tour.output if name not in SOFTMAXES)
    return chain((1024, 1024, 200), [next(tour.plain)], output, dtype)


def gated_layers(dtype: Dtype, tour: Tour, outputs: int) -> MlpSpec:
    """Both gated, at odd widths: exact GELU in the hidden one, any in the last; then a softmax."""
    return chain((1023, 1023, outputs), ["gelu", next(tour.gate)], next(tour.softmax), dtype, gated=True)


def long_sum(dtype: Dtype, tour: Tour, outputs: int) -> MlpSpec:
    """A gated product of more inputs than a part of a sum has, and a softmax."""
    return chain((1300, outputs), [next(tour.gate)], next(tour.softmax), dtype, gated=True)


def residual_layers(dtype: Dtype, tour: Tour, narrow: int) -> MlpSpec:
    """A residual product, and one with a norm in its epilogue, whose rows a tile holds; norms and a softmax over rows
    that none holds."""
    sketch = Sketch(1023, dtype)
    h = sketch.norm(sketch.function(INPUT, next(tour.plain)), next(tour.norm))
    h = sketch.combine("add", sketch.linear(h, 1023, "gelu"), INPUT)
    h = sketch.combine("concat", sketch.function(h, next(tour.softmax)), INPUT)
    return sketch.spec(output=sketch.norm(sketch.linear(h, narrow), next(tour.norm)))


def _residual_tower(width: int, hidden: int, blocks: int, dtype: Dtype) -> MlpSpec:
    sketch = Sketch(width, dtype)
    x = INPUT
    for _ in range(blocks):
        h = sketch.linear(sketch.norm(x, "layer"), hidden, "gelu")
        x = sketch.combine("add", sketch.linear(h, width), x)
    return sketch.spec(output=sketch.linear(sketch.norm(x, "layer"), 10))


def _skip(inputs: int, width: int, dtype: Dtype) -> MlpSpec:
    sketch = Sketch(inputs, dtype)
    h = INPUT
    for layer in range(8):
        h = sketch.linear(h if layer != 4 else sketch.combine("concat", INPUT, h), width, "relu")
    return sketch.spec(output=sketch.linear(h, 4))


def _actor_critic(inputs: int, dtype: Dtype) -> MlpSpec:
    sketch = Sketch(inputs, dtype)
    h = sketch.linear(sketch.linear(INPUT, 64, "tanh"), 64, "tanh")
    return sketch.spec(pi=sketch.linear(h, 6, "softmax"), v=sketch.linear(h, 1))


def ranker(dtype: Dtype) -> MlpSpec:
    """Two tables, one of them in a bag with factors, and floats."""
    ids = [
        Input(name=name, dtype="int64", shape=shape, fields=(Field(kind="id", size=1000),))
        for name, shape in (("item", ()), ("seen", (4,)))
    ]
    sketch = Sketch(12, dtype, inputs=(*ids, Input(name="x", shape=(7,))))
    item = sketch.lookup("embedding", sketch.part(INPUT, 0, 1), 1000, 33)
    x = sketch.part(INPUT, 5, 12)
    seen = sketch.lookup("bag", sketch.part(INPUT, 1, 5), 1000, 16, factors=sketch.part(INPUT, 5, 9))
    return sketch.spec(output=sketch.linear(sketch.combine("concat", item, seen, x), 64, "relu"))


# Typical models, for the table of launches.
EXAMPLES = (
    chain((64, 128, 128, 10), ["relu"] * 2, "softmax", "float32"),
    chain((784, 512, 256, 10), ["relu"] * 2, "softmax", "float32"),
    chain((32, 64, 64, 64, 64, 64, 64, 64, 3), ["silu"] * 7, "identity", "float16"),
    chain((768, 3072, 768), ["gelu"], "identity", "bfloat16"),
    chain((768, 3072, 768), ["gelu"], "identity", "bfloat16", gated=True),
    chain((4096, 11008, 4096), ["silu"], "identity", "bfloat16", gated=True),
    _residual_tower(64, 128, 2, "float16"),
    _residual_tower(256, 1024, 4, "float16"),
    _skip(63, 128, "float16"),
    _actor_critic(17, "float32"),
)
