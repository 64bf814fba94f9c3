# SPDX-License-Identifier: Apache-2.0
"""The graph that a reader builds, before it is folded into the steps of a spec: nodes that each make one flat value
(rows, width), constants, and how a formula is told to be affine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models import formula
from fused_mlp.models.activations import Floats
from fused_mlp.models.dtypes import Array, widen
from fused_mlp.models.spec import Combination

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
    """A tensor that does not depend on the rows. `origin` is its name in the source while nothing was done to it;
    `dtype` is the name of the dtype that the source keeps it in, "" where arithmetic made it. `fixed`: it holds nothing
    that is trained, but places and sums features, or is a buffer or a number of the source. `quantized`: a weight that
    the source keeps in int8 and multiplies by rows in int8."""

    array: Array
    origin: str = ""
    dtype: str = ""
    fixed: bool = False
    quantized: bool = False

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
        """What was computed from this one and others: it has no name in the source."""
        fixed = self.fixed and all(each is None or each.fixed for each in others)
        return Constant(array, "", self.dtype, fixed, self.quantized)


def number(value: float, width: int) -> Constant:
    """The same number for each feature."""
    return Constant(np.full(width, value), fixed=True)


Weights = tuple[Constant, Constant | None]  # weight and bias of one product


@dataclass(eq=False)
class Node:
    """A value of the graph, (rows, width). `number` orders nodes as they were made, sources first."""

    place: Place
    sources: tuple[Node, ...]
    width: int
    number: int = field(default_factory=lambda: next(_numbers), init=False)


@dataclass(eq=False)
class InputNode(Node):
    pass


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
    """A function of one value. `tree` None: conditions that no formula spells; `values` computes it all the same, and
    it has to be recognised by its values before it becomes a step."""

    tree: formula.Node | None
    values: Callable[[Floats], Floats]


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
class CombineNode(Node):
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


def live_nodes(outputs: list[Node]) -> list[Node]:
    """All that the outputs need, sources before what reads them."""
    seen: dict[int, Node] = {}
    pending = list(outputs)
    while pending:
        node = pending.pop()
        if node.number not in seen:
            seen[node.number] = node
            pending.extend(node.sources)
    return [seen[number] for number in sorted(seen)]
