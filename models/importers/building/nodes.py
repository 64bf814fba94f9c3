# SPDX-License-Identifier: Apache-2.0
"""The graph that a reader builds, before it is folded into the steps of a spec: nodes that each make one flat value
(rows, width), constants, and how a formula is told to be affine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.program import formula
from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.inputs import InputDtype, Rule
from fused_mlp.models.program.steps import (
    AnyStep,
    Argmax,
    Combination,
    Combine,
    Compare,
    Comparison,
    Dot,
    Kind,
    Number,
    Pick,
    Reduce,
    Repeat,
    Where,
)
from fused_mlp.models.weights.dtypes import Array, widen

Indices = NDArray[np.intp]
_numbers = count()


@dataclass(frozen=True)
class Place:
    """Where in its source something is computed. `where` starts every refusal (`blocks.3.fc1: linear`), `name` is what
    the step would like to be called, `line` is the source line, if the reader knows it."""

    where: str = "the model"
    name: str = "step"
    line: str = ""

    def __str__(self) -> str:
        return f"{self.where} ({self.line})" if self.line else self.where


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that does not depend on the rows. `origin` is its name in the source while nothing but a transposition
    was done to it, `transposed` whether one was; `dtype` is the name of the dtype that the source keeps it in, "" where
    arithmetic made it. `fixed`: it holds nothing that is trained, but places and sums features, or is a buffer or a
    number of the source. `quantized`: a weight that the source keeps in int8 and multiplies by rows in int8."""

    array: Array
    origin: str = ""
    dtype: str = ""
    fixed: bool = False
    quantized: bool = False
    transposed: bool = False

    @property
    def key(self) -> tuple[str, bool]:
        """Equal for constants of the same values. A name alone does not tell a square matrix from its transpose."""
        return self.origin, self.transposed

    @property
    def matrix_transposed(self) -> Constant:
        """(columns, rows) of a matrix. Keeps its name, so that steps are called what the weights are."""
        return replace(self, array=self.array.T, transposed=not self.transposed)

    @property
    def exact(self) -> NDArray[np.float64]:
        if self.array.dtype == np.float64:
            return self.array
        return (
            widen(self.array).astype(np.float64)
            if self.array.dtype.kind in "fV"
            else self.array.astype(np.float64)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def of(self, array: Array, *others: Constant | None) -> Constant:
        """A tensor computed from this one and others: it has no name in the source."""
        fixed = self.fixed and all(each is None or each.fixed for each in others)
        return Constant(array, "", self.dtype, fixed, self.quantized)


def number(value: float, width: int) -> Constant:
    """The same number for each feature."""
    return Constant(np.full(width, value), fixed=True)


Weights = tuple[Constant, Constant | None]  # weight and bias of one product


@dataclass(eq=False)
class Node:
    """A value of the graph, (rows, width). `number` orders nodes as they were made."""

    place: Place
    sources: tuple[Node, ...]
    width: int
    number: int = field(default_factory=lambda: next(_numbers), init=False)


@dataclass(eq=False)
class PlainNode(Node):
    """A value that a step without tensors makes of its sources. The fields are those of the step."""

    step: ClassVar[type[AnyStep]]


@dataclass(eq=False)
class InputNode(Node):
    """The floats of all inputs, side by side."""


class Source(NamedTuple):
    """One input of the model: what callers send under a name. `shape` is that of one row. `vocabulary`: the words, or
    codes, that are known; each is the id of its place, and all others are `unknown`, or refused."""

    name: str
    shape: tuple[int, ...]
    dtype: InputDtype = "float32"
    vocabulary: tuple[str | int, ...] | None = None
    unknown: int | None = None


class Cell(NamedTuple):
    """One value of an input, and what is done with it as a whole number before the program reads it."""

    source: int
    position: int
    rules: tuple[Rule, ...] = ()


@dataclass(eq=False)
class FieldNode(Node):
    """Values of inputs that were whole numbers on their way into the program: ids, or floats made of them. `single`:
    the model makes float32 of them, whatever it computes in."""

    cells: tuple[Cell, ...]
    kind: Kind
    single: bool = False


@dataclass(eq=False)
class EmbeddingNode(Node):
    """A row of the table for each id. `one_hot`: the table is a code, mostly of zeros, which products take in."""

    table: Constant  # (size, features)
    one_hot: bool = False


@dataclass(eq=False)
class BagNode(Node):
    """sources: ids, and one factor for each where it has them. `ragged`: the model takes any number of ids."""

    table: Constant
    mode: Literal["sum", "mean", "max"]
    padding: int | None = None
    ragged: bool = False


@dataclass(eq=False)
class BucketizeNode(Node):
    boundaries: Constant  # (count,), ascending
    right: bool = False


@dataclass(eq=False)
class ArgmaxNode(PlainNode):
    step = Argmax


@dataclass(eq=False)
class NumberNode(PlainNode):
    """Ids as floats."""

    step = Number


@dataclass(eq=False)
class PickNode(PlainNode):
    """sources: a value, and the id of the one of its `groups` parts that is wanted."""

    step = Pick
    groups: int


@dataclass(eq=False)
class DotNode(PlainNode):
    step = Dot
    groups: int
    itself: bool


@dataclass(eq=False)
class ReduceNode(PlainNode):
    step = Reduce
    groups: int
    mode: Literal["sum", "mean", "max"]
    over: Literal["vectors", "features"]


@dataclass(eq=False)
class RepeatNode(PlainNode):
    step = Repeat
    groups: int
    times: int


@dataclass(eq=False)
class CompareNode(PlainNode):
    step = Compare
    op: Comparison


@dataclass(eq=False)
class WhereNode(PlainNode):
    step = Where


@dataclass(eq=False)
class LinearNode(Node):
    """`role`: what a matrix that the builder made does, for recognising norms (sum, mean, broadcast, select)."""

    weight: Constant  # (width, width of the source)
    bias: Constant | None = None
    role: Literal["", "sum", "mean", "broadcast", "select"] = ""


@dataclass(eq=False)
class GatedNode(Node):
    """function(gate) * up, two linears of one source."""

    up: Weights
    gate: Weights
    function: formula.Node


@dataclass(eq=False)
class ElementNode(Node):
    """A function of one value. `tree` None: conditions that no formula spells; `values` computes it all the same, so
    that it may turn out to be part of a known function. If it does not, `explicit` stands in its place: the same value
    made by comparisons and choices."""

    tree: formula.Node | None
    values: Callable[[Floats], Floats]
    explicit: Node | None = None


@dataclass(eq=False)
class AffineNode(Node):
    scale: Constant | None  # (width,)
    shift: Constant | None


@dataclass(eq=False)
class NormNode(Node):
    kind: Literal["layer", "rms", "l2"]
    eps: float
    weight: Constant | None = None
    bias: Constant | None = None


@dataclass(eq=False)
class SoftmaxNode(Node):
    log: bool = False


@dataclass(eq=False)
class CombineNode(PlainNode):
    step = Combine
    op: Combination


@dataclass(eq=False)
class ConcatNode(Node):
    pass


@dataclass(eq=False)
class SliceNode(Node):
    start: int


def affine_of(tree: formula.Node | None) -> tuple[float, float] | None:  # noqa: PLR0911 - a table of operations
    """(scale, shift) of a tree that is x * scale + shift by its spelling; None for the others."""
    if tree is None:
        return None
    if tree.op == "x":
        return 1.0, 0.0
    if tree.op == "constant":
        return 0.0, tree.numbers[0]
    if tree.op not in ("add", "subtract", "multiply", "divide"):
        return None
    left, right = (affine_of(each) for each in tree.arguments)
    if left is None or right is None:
        return None
    (a, b), (c, d) = left, right
    if tree.op == "add":
        return a + c, b + d
    if tree.op == "subtract":
        return a - c, b - d
    if tree.op == "multiply" and 0.0 in (a, c):
        return a * d + c * b, b * d
    if tree.op == "divide" and c == 0.0 and d != 0.0:
        return a / d, b / d
    return None


def order_of(node: Node) -> tuple[Node, Indices] | None:
    """(source, order) of a node that is features of one other node, in some order."""
    if isinstance(node, LinearNode) and node.role == "select":
        return node.sources[0], node.weight.array.argmax(axis=1)
    if not isinstance(node, ConcatNode):
        return None
    parts = [each for each in node.sources if isinstance(each, SliceNode)]
    if len(parts) < len(node.sources) or len({each.sources[0].number for each in parts}) > 1:
        return None
    return parts[0].sources[0], np.concatenate([each.start + np.arange(each.width) for each in parts])


def kind_of(node: Node) -> Kind:
    """Whether a value holds floats or ids."""
    if isinstance(node, FieldNode):
        return node.kind
    if isinstance(node, (SliceNode, ConcatNode)):
        return kind_of(node.sources[0])
    return "id" if isinstance(node, (BucketizeNode, ArgmaxNode)) else "float"


def live_nodes(outputs: list[Node]) -> list[Node]:
    """All that the outputs need, sources before what reads them; by their numbers apart from that."""
    seen: dict[int, Node] = {}
    users: dict[int, list[Node]] = {}
    pending = list(outputs)
    while pending:
        node = pending.pop()
        if node.number not in seen:
            seen[node.number] = node
            for source in node.sources:
                users.setdefault(source.number, []).append(node)
            pending.extend(node.sources)
    waiting = {number: len(node.sources) for number, node in seen.items()}
    ready = [number for number, count in waiting.items() if not count]
    heapify(ready)
    ordered = []
    while ready:
        node = seen[heappop(ready)]
        ordered.append(node)
        for user in users.get(node.number, ()):
            waiting[user.number] -= 1
            if not waiting[user.number]:
                heappush(ready, user.number)
    return ordered
