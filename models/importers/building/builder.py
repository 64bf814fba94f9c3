"""`Builder`: what every reader of graphs builds an MLP with. A reader goes through its graph in order and calls one
method per operation; the builder folds, recognises and names, and `finish` gives the Mlp.

    builder = Builder(in_features=8)                      # or input_shape=(3, 8)
    with builder.at(Place("layer fc1: linear", "fc1")):   # where in the source the calls within are
        x = builder.linear(builder.input, weight, bias)   # Constant(array, origin="fc1.weight", dtype="float32")
        x = builder.function("relu", x)                   # any name of models/formula.py, with its numbers
        x = builder.arithmetic("add", x, builder.input)   # of two Rows, a Rows and a Constant, or a float
    builder.output("output", x)
    mlp = builder.finish(dtype=None)

A value is a `Rows` (see rows.py): a node, and an index in the shape of the source's tensor, rows' axis included. Views
are functions of rows.py and cost nothing: reshaped, permuted, inserted, removed, expanded, taken. Operations that
take several axes (`linear`, `softmax`, `norm`, `reduce`, `concat`) take the source's axes. Nothing that no output
needs becomes a step, so that readers may build what turns out to be dead.

What cannot be represented raises ModelLoadError, which `builder.at` starts with the place: call the functions of
rows.py within it as well. `builder.exact()` is the program with its weights
in float64, for `verification.verify`, which every reader ends with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import numpy as np

from fused_mlp.models import formula
from fused_mlp.models.activations import PRIMITIVES, Floats
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.formula import FormulaError
from fused_mlp.models.importers.activation_match import POINTS, match_formula
from fused_mlp.models.importers.building import finishing
from fused_mlp.models.importers.building.nodes import (
    AffineNode,
    CombineNode,
    ConcatNode,
    Constant,
    ElementNode,
    Indices,
    InputNode,
    LinearNode,
    Node,
    NormNode,
    Place,
    SliceNode,
    SoftmaxNode,
    affine_of,
    live_nodes,
)
from fused_mlp.models.importers.building.norms import normalized
from fused_mlp.models.importers.building.rows import Rows, aligned, permuted, reshaped, whole
from fused_mlp.models.spec import Combination, Dtype
from fused_mlp.models.weights import Mlp

_ANY_FEATURE = Place("a constant", "constant")
Operand = Rows | Constant | float
_Function = tuple[formula.Node | None, Callable[[Floats], Floats]]
# More parts than this are no MLP any more: a convolution or a sequence, whose parts are rows of their own.
MAX_PARTS = 256
# Of a matrix that the builder makes itself, to sum up or pick features.
MAX_MATRIX = 1 << 24
# Of a selection that is put together of parts; one of more parts, or of shorter ones, is a product with a matrix.
_MAX_RUNS = 16
_MIN_RUN = 4
_COMPARISONS: dict[str, Callable[[Floats, Floats], Floats]] = {
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}


class Builder:
    def __init__(self, in_features: int, input_shape: Sequence[int] | None = None) -> None:
        self._shape = None if input_shape is None else tuple(input_shape)
        self._place = Place("the input", "input")
        self._nodes: dict[tuple[object, ...], Node] = {}  # by what they compute: equal ones are made once
        self._outputs: list[tuple[str, Node, bool]] = []
        self.input = whole(InputNode(self._place, (), in_features), self._shape and (1, *self._shape))

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Where the calls within are, for names and errors."""
        self._place = place
        try:
            yield
        except ModelLoadError as error:
            text = str(error)
            raise ModelLoadError(text if text.startswith(str(place)) else f"{place}: {text}") from None
        except FormulaError as error:
            raise ModelLoadError(f"{place}: {error}") from None

    # Products

    def linear(self, x: Rows, weight: Constant, bias: Constant | None = None) -> Rows:
        """Of the last axis. weight: (out, in), bias: (out,) or one value."""
        if len(weight.shape) != 2 or 0 in weight.shape:
            raise ModelLoadError(f"expected a weight of shape (out, in), got {weight.shape}")
        out, width = weight.shape
        if bias is not None and bias.shape != (out,):
            if bias.array.size not in (1, out):
                raise ModelLoadError(f"expected a bias of shape ({out},), got {bias.shape}")
            bias = Constant(np.broadcast_to(bias.array.reshape(-1), (out,)), "", bias.dtype)
        if x.shape[-1] != width or x.rows_at == x.index.ndim - 1:
            raise ModelLoadError(f"expected {width} features, got {x.shape[-1]}")
        groups = x.index.reshape(-1, width)
        if len(groups) > 1 and (np.diff(groups, axis=1) != 1).any():  # put in order once, not part by part
            x = whole(self.flat(x), x.shape, x.rows_at)
            groups = x.index.reshape(-1, width)
        made = [self._linear(x.node, group, weight, bias) for group in self._parts(list(groups))]
        return whole(self._side_by_side(made), (*x.shape[:-1], out), x.rows_at)

    def matmul(self, left: Rows | Constant, right: Rows | Constant) -> Rows:
        """As numpy's, of rows and a constant of any number of axes."""
        if isinstance(left, Rows) and isinstance(right, Rows):
            raise ModelLoadError(
                "a product of two computed matrices (attention, a bilinear form) is no step of an MLP"
            )
        if isinstance(right, Rows):
            assert isinstance(left, Constant)
            if len(left.shape) == 1:  # a vector times (..., in, rows)
                return self.matmul(_swapped(right), left)
            flipped = Constant(left.array.swapaxes(-1, -2), "", left.dtype)
            return _swapped(self.matmul(_swapped(right), flipped))
        assert isinstance(left, Rows)
        matrix = right.array
        if matrix.ndim == 1:
            made = self.linear(left, Constant(matrix.reshape(1, -1), "", right.dtype))
            return Rows(made.node, made.index[..., 0], made.rows_at)
        if matrix.ndim == 2:
            return self.linear(left, Constant(matrix.T, right.origin and f"{right.origin}.T", right.dtype))
        if left.index.ndim < 2 or left.rows_at < left.index.ndim - 2:
            raise ModelLoadError("a batched product over the rows is no step of an MLP")
        batch = np.broadcast_shapes(left.shape[:-2], matrix.shape[:-2])
        index = np.broadcast_to(left.index, (*batch, *left.shape[-2:]))
        matrices = np.broadcast_to(matrix, (*batch, *matrix.shape[-2:]))
        nodes = []
        for at in self._parts(list(np.ndindex(*batch))):
            weight = Constant(matrices[at].T, "", right.dtype)
            nodes.append(self.linear(Rows(left.node, index[at], 0), weight).node)
        shape = (*batch, left.shape[-2], matrix.shape[-1])
        return whole(self._side_by_side(nodes), shape, len(shape) - 2)

    # Functions of one value, and arithmetic

    def function(self, name: str, x: Rows, *numbers: float) -> Rows:
        """A function of models/formula.py."""
        tree = formula.call(name, formula.x(), *numbers)
        return self.apply(x, tree)

    def apply(self, x: Rows, tree: formula.Node) -> Rows:
        """A formula."""
        x = self._compact(x)
        return x.of(self._element(x.node, tree, formula.of(tree)))

    def arithmetic(self, op: Combination, left: Operand, right: Operand) -> Rows:
        left, right = _scalar(left), _scalar(right)
        if isinstance(left, Rows) and isinstance(right, Rows):
            return self._combine(op, left, right)
        if isinstance(left, Rows):
            if isinstance(right, Constant):
                return self._with_vector(op, left, right)
            return self.apply(left, formula.binary(op, formula.x(), formula.constant(cast(float, right))))
        assert isinstance(right, Rows)
        if isinstance(left, Constant):
            return self._from_vector(op, left, right)
        return self.apply(right, formula.binary(op, formula.constant(left), formula.x()))

    def power(self, x: Rows, exponent: float) -> Rows:
        """x ** exponent, for whole and half exponents up to 16."""
        size = abs(exponent)
        if not 0 < size <= 16 or size * 2 != int(size * 2):
            raise ModelLoadError(
                f"the power {exponent} is no step of an MLP: expected a whole or half one, up to 16"
            )
        whole_part, root = int(size), size != int(size)
        tree = formula.constant(1.0)
        base, bits = formula.x(), whole_part
        while bits:
            if bits & 1:
                tree = base if tree.op == "constant" else formula.binary("multiply", tree, base)
            base, bits = formula.binary("multiply", base, base), bits >> 1
        if root:
            tree = (
                formula.call("sqrt", formula.x())
                if whole_part == 0
                else formula.binary("multiply", tree, formula.call("sqrt", formula.x()))
            )
        if exponent < 0:
            tree = formula.binary("divide", formula.constant(1.0), tree)
        return self.apply(x, tree)

    def compare(self, op: str, left: Operand, right: Operand) -> Rows:
        """0 or 1, for `where` and for products that are a known function: greater, less_equal, equal, ..."""
        return self._by_value(_COMPARISONS[op], left, right)

    def where(self, condition: Operand, left: Operand, right: Operand) -> Rows:
        """Of functions of one value, if the result is a function that is known; or by a constant mask."""
        if isinstance(condition, Constant):
            mask = condition.array.astype(np.float64)
            chosen = self._masked(left, mask)
            other = self._masked(right, 1 - mask)
            return self.arithmetic("add", chosen, other)
        return self._by_value(np.where, condition, left, right)

    def prelu(self, x: Rows, slope: Operand, axis: int = 1) -> Rows:
        slope = _scalar(slope)
        if isinstance(slope, float):
            return self.function("leaky_relu", x, slope)
        assert isinstance(slope, Constant)
        shape = [1] * x.index.ndim
        shape[x.axis(axis)] = -1
        below = self.apply(x, formula.binary("minimum", formula.x(), formula.constant(0.0)))
        scaled = self.arithmetic("multiply", below, Constant(slope.array.reshape(shape), "", slope.dtype))
        return self.arithmetic("add", self.function("relu", x), scaled)

    # Over features

    def softmax(self, x: Rows, axis: int, *, log: bool = False) -> Rows:
        return self._over(x, (axis,), lambda node: SoftmaxNode(self._place, (node,), node.width, log))

    def norm(
        self,
        kind: Literal["layer", "rms", "l2"],
        x: Rows,
        axes: Sequence[int],
        *,
        eps: float,
        weight: Constant | None = None,
        bias: Constant | None = None,
    ) -> Rows:
        """weight, bias: in the shape of the axes."""
        flat_weight, flat_bias = map(_flattened, (weight, bias))
        return self._over(
            x,
            axes,
            lambda node: NormNode(self._place, (node,), node.width, kind, eps, flat_weight, flat_bias),
        )

    def batch_norm(
        self,
        x: Rows,
        mean: Constant,
        variance: Constant,
        *,
        weight: Constant | None,
        bias: Constant | None,
        eps: float,
    ) -> Rows:
        """Of axis 1, with the statistics of training."""
        scale = 1 / np.sqrt(variance.exact + eps)
        if weight is not None:
            scale = scale * weight.exact
        shift = -mean.exact * scale
        if bias is not None:
            shift = shift + bias.exact
        if x.rows_at != 0 or x.index.ndim < 2 or x.shape[1] != scale.size:
            raise ModelLoadError(f"expected {scale.size} features, got shape {('rows', *x.shape[1:])}")
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        scaled = self._with_vector("multiply", x, Constant(scale.reshape(shape)))
        return self._with_vector("add", scaled, Constant(shift.reshape(shape)))

    def reduce(
        self,
        kind: Literal["sum", "mean", "max", "min", "prod"],
        x: Rows,
        axes: Sequence[int],
        *,
        keep: bool = False,
    ) -> Rows:
        """Over features; over the rows it is refused."""
        at = self._axes(x, axes)
        kept = tuple(1 if axis in at else size for axis, size in enumerate(x.shape))
        moved = np.moveaxis(x.index, at, range(-len(at), 0))
        index = moved.reshape(-1, math.prod(x.shape[axis] for axis in at))
        if kind in ("sum", "mean"):
            node = self._summed(x.node, index, kind)
            made = whole(node, kept, x.rows_at)
        else:
            op: Combination = {"max": "maximum", "min": "minimum", "prod": "multiply"}[kind]  # type: ignore[assignment]
            made = Rows(x.node, index[:, 0].reshape(kept), x.rows_at)
            for position in self._parts(range(1, index.shape[1])):
                other = Rows(x.node, index[:, position].reshape(kept), x.rows_at)
                made = self._combine(op, made, other)
        if keep:
            return made
        shape = [size for axis, size in enumerate(made.shape) if axis not in at]
        return Rows(made.node, made.index.reshape(shape), x.rows_at - sum(axis < x.rows_at for axis in at))

    def variance(self, x: Rows, axes: Sequence[int], correction: float, *, keep: bool = False) -> Rows:
        count = math.prod(x.shape[axis] for axis in self._axes(x, axes))
        if count <= correction:
            raise ModelLoadError(
                f"the variance of {count} values with correction {correction} is not defined"
            )
        centred = self.arithmetic("subtract", x, self.reduce("mean", x, axes, keep=True))
        squares = self.apply(centred, formula.call("square", formula.x()))
        total = self.reduce("sum" if correction else "mean", squares, axes, keep=keep)
        return self.arithmetic("multiply", total, 1 / (count - correction)) if correction else total

    def log_sum_exp(self, x: Rows, axes: Sequence[int], *, keep: bool = False) -> Rows:
        """x - log_softmax(x), of any one feature: the same number, and safe."""
        at = self._axes(x, axes)
        if len(at) != 1:
            raise ModelLoadError("logsumexp over several axes is no step of an MLP")
        first = (slice(None),) * at[0] + (slice(0, 1),)
        below = self.softmax(x, at[0], log=True)
        pair = (Rows(x.node, x.index[first], x.rows_at), Rows(below.node, below.index[first], x.rows_at))
        made = self._combine("subtract", *pair)
        if keep:
            return made
        return Rows(made.node, made.index.squeeze(at[0]), x.rows_at - (at[0] < x.rows_at))

    # Side by side

    def concat(self, parts: Sequence[Rows | Constant], axis: int) -> Rows:
        first = next(part for part in parts if isinstance(part, Rows))
        at = first.axis(axis)
        if at == first.rows_at:
            raise ModelLoadError(
                "it puts rows together: every row of an answer comes from one row of the input"
            )
        rows = [part if isinstance(part, Rows) else self._constant_rows(part, first) for part in parts]
        if any(each.rows_at != first.rows_at for each in rows):
            raise ModelLoadError("it puts values together whose rows lie on different axes")
        if all(each.node is first.node for each in rows):
            return Rows(first.node, np.concatenate([each.index for each in rows], at), first.rows_at)
        indices, nodes, offset = [], [], 0
        for each in rows:
            node, index = (each.node, each.index) if each.is_permuted else (self.flat(each), _own_order(each))
            indices.append(index + offset)
            nodes.append(node)
            offset += node.width
        return Rows(self._side_by_side(nodes), np.concatenate(indices, at), first.rows_at)

    def filled(self, part: Constant, like: Rows) -> Rows:
        """The constant, for every row, in the shape of a value."""
        array = np.broadcast_to(part.exact, like.shape)
        return self._constant_rows(Constant(array), like)

    def _constant_rows(self, part: Constant, like: Rows) -> Rows:
        """The same values for every row: a product with zeros, and a bias."""
        array = part.exact
        if array.ndim != like.index.ndim or array.shape[like.rows_at] != 1:
            raise ModelLoadError(f"expected a constant with one entry for all rows, got shape {array.shape}")
        start = self.input.node  # any one value will do
        narrow = start if start.width == 1 else SliceNode(_ANY_FEATURE, (start,), 1, 0)
        node = LinearNode(
            self._place,
            (narrow,),
            array.size,
            Constant(np.zeros((array.size, 1)), fixed=True),
            Constant(array.reshape(-1)),
        )
        return whole(node, array.shape, like.rows_at)

    def replaced(self, x: Rows, axis: int, positions: slice | int, part: Rows) -> Rows:
        """x with other features at some positions of an axis."""
        at = x.axis(axis)
        if at == x.rows_at:
            raise ModelLoadError("it writes to some rows: every row is answered in the same way")
        key = (slice(None),) * at + (positions,)
        index = np.array(x.index)
        index[key] = part.index + x.node.width
        return Rows(self._side_by_side([x.node, part.node]), index, x.rows_at)

    # The end

    def output(self, name: str, x: Rows) -> None:
        """`name`: what callers know it by. (rows, n), or (rows,), which the model is then known to squeeze to."""
        if x.rows_at != 0 or x.index.ndim > 2 or x.shape[0] != 1:
            rows = "rows" if x.shape[x.rows_at] == 1 else f"{x.shape[x.rows_at]} * rows"
            shape = tuple(rows if axis == x.rows_at else str(size) for axis, size in enumerate(x.shape))
            raise ModelLoadError(
                f"output {name!r} has shape ({', '.join(shape)}): expected (rows, n); flatten it, "
                "or make rows of the rest"
            )
        self._outputs.append((name, self.flat(x), x.index.ndim == 1))

    def takes_parts(self) -> bool:
        """Whether nothing uses the whole input, so that its width is not told by what uses it."""
        nodes = live_nodes([node for _, node, _ in self._outputs])
        users = [node for node in nodes if self.input.node in node.sources and node.place is not _ANY_FEATURE]
        return bool(users) and all(isinstance(node, SliceNode) for node in users)

    def finish(self, dtype: Dtype | None = None) -> Mlp:
        """`dtype` None keeps the source's where it is one we serve; asking for one rounds."""
        self._program = finishing.finish(self.input.node, self._shape, self._outputs, dtype)
        return self._program.mlp

    def exact(self) -> Mlp:
        """The finished program with its tensors in float64, as folded: what `verification` compares."""
        return self._program.exact

    def origins(self) -> dict[str, str]:
        """Of the finished program: the name in the source of each tensor that nothing was done to."""
        return self._program.origins

    def fixed(self) -> frozenset[str]:
        """Of the finished program: the tensors in which nothing of the source's weights is."""
        return self._program.fixed

    # Nodes

    def flat(self, x: Rows) -> Node:
        """A node with the features of x in row-major order."""
        return self._gather(x.node, x.order)

    def _gather(self, node: Node, order: Indices) -> Node:
        size = order.size
        if size == node.width and bool((order == np.arange(size)).all()):
            return node
        key = ("gather", node.number, order.tobytes())
        if key in self._nodes:
            return self._nodes[key]
        starts = np.flatnonzero(np.diff(order, prepend=order[0] - 2) != 1)  # of runs of neighbours
        long = size >= _MIN_RUN * starts.size or starts.size <= 2
        if long and starts.size <= _MAX_RUNS and not (node.width == 1 and size > 1):
            ends = [*starts[1:], size]
            runs = [
                self._slice(node, int(order[start]), int(order[start]) + int(end - start))
                for start, end in zip(starts, ends, strict=True)
            ]
            made = self._side_by_side(runs)
        else:
            if size * node.width > MAX_MATRIX:
                raise ModelLoadError(
                    f"{size} features picked out of {node.width} in no order: too large a matrix"
                )
            matrix = np.zeros((size, node.width))
            matrix[np.arange(size), order] = 1
            role: Literal["broadcast", "select"] = "broadcast" if node.width == 1 else "select"
            made = LinearNode(self._place, (node,), size, Constant(matrix, fixed=True), None, role)
        self._nodes[key] = made
        return made

    def _slice(self, node: Node, start: int, stop: int) -> Node:
        if start == 0 and stop == node.width:
            return node
        if isinstance(node, ConcatNode):  # whole parts of it, or a part of one
            edges = np.cumsum([0, *(part.width for part in node.sources)]).tolist()
            if start in edges and stop in edges:
                return self._side_by_side(list(node.sources[edges.index(start) : edges.index(stop)]))
            for edge, part in zip(edges, node.sources, strict=False):
                if edge <= start and stop <= edge + part.width:
                    return self._slice(part, start - edge, stop - edge)
        key = ("slice", node.number, start, stop)
        if key not in self._nodes:
            self._nodes[key] = SliceNode(self._place, (node,), stop - start, start)
        return self._nodes[key]

    def _side_by_side(self, nodes: Sequence[Node]) -> Node:
        if len(nodes) == 1:
            return nodes[0]
        key = ("concat", *(node.number for node in nodes))
        if key not in self._nodes:
            self._nodes[key] = ConcatNode(self._place, tuple(nodes), sum(node.width for node in nodes))
        return self._nodes[key]

    def _compact(self, x: Rows) -> Rows:
        """x of a node that has not more features than x needs, for what is computed feature by feature."""
        return x if x.index.size >= x.node.width else whole(self.flat(x), x.shape, x.rows_at)

    def _linear(self, node: Node, order: Indices, weight: Constant, bias: Constant | None) -> Node:
        runs = int(np.count_nonzero(np.diff(order) != 1))
        if (
            runs > 0 and order.size * 2 >= node.width
        ):  # the order, and repetitions, become part of the weights
            matrix = np.zeros((weight.shape[0], node.width))
            np.add.at(matrix.T, order, weight.exact.T)
            weight = Constant(matrix, "", weight.dtype)
        else:
            node = self._gather(node, order)
        return LinearNode(self._place, (node,), weight.shape[0], weight, bias)

    def _summed(self, node: Node, index: Indices, kind: Literal["sum", "mean"]) -> Node:
        """index: (results, summands)."""
        key = ("sum", kind, node.number, index.shape, index.tobytes())
        if key not in self._nodes:
            self._nodes[key] = self._made_sum(node, index, kind)
        return self._nodes[key]

    def _made_sum(self, node: Node, index: Indices, kind: Literal["sum", "mean"]) -> Node:
        if index.size < node.width:
            node, index = self._gather(node, index.reshape(-1)), np.arange(index.size).reshape(index.shape)
        if index.shape[0] * node.width > MAX_MATRIX:
            raise ModelLoadError(f"{index.shape[0]} sums over {node.width} features: too large a matrix")
        matrix = np.zeros((index.shape[0], node.width))
        np.add.at(
            matrix, (np.arange(index.shape[0])[:, None], index), 1.0 if kind == "sum" else 1 / index.shape[1]
        )
        alone = index.shape[0] == 1 and bool((matrix == matrix[0, 0]).all())
        return LinearNode(
            self._place, (node,), index.shape[0], Constant(matrix, fixed=True), None, kind if alone else ""
        )

    def _element(self, node: Node, tree: formula.Node | None, values: Callable[[Floats], Floats]) -> Node:
        """A function of a node, merged with what the node already is a function of."""
        if tree is not None and tree.op == "x":
            return node
        base, inner, inner_values = _unwrapped(node)
        if base is not node:
            try:
                merged = (
                    None if tree is None or inner is None else formula.of(inner).then(formula.of(tree)).root
                )
                return self._made_element(base, merged, lambda x: values(inner_values(x)))
            except FormulaError:  # too long for one formula
                pass
        return self._made_element(node, tree, values)

    def _made_element(
        self, base: Node, tree: formula.Node | None, values: Callable[[Floats], Floats]
    ) -> Node:
        if tree is None:
            with np.errstate(all="ignore"):
                tree = match_formula(values(POINTS))
            if tree is None:
                return ElementNode(self._place, (base,), base.width, None, values)
            values = formula.of(tree)
        if tree.op == "x":
            return base
        formula.of(tree)  # FormulaError where it is too long
        key = ("element", base.number, tree)
        if key not in self._nodes:
            self._nodes[key] = ElementNode(self._place, (base,), base.width, tree, values)
        return self._nodes[key]

    def _affine(self, node: Node, scale: Constant | None, shift: Constant | None) -> Node:
        """node * scale + shift, merged with a scale and shift before it."""
        if isinstance(node, ElementNode) and (found := affine_of(node.tree)) is not None:
            factor, offset = (Constant(np.full(node.width, number)) for number in found)
            return self._affine(node.sources[0], *_composed(factor, offset, scale, shift))
        if isinstance(node, AffineNode):
            composed = _composed(node.scale, node.shift, scale, shift)
            return AffineNode(self._place, node.sources, node.width, *composed)
        return AffineNode(self._place, (node,), node.width, scale, shift)

    def _combine(self, op: Combination, left: Rows, right: Rows) -> Rows:
        # Parts of a value are steps of their own by now where a function was applied to one of them: g * sigmoid(g).
        left, right = map(self._compact, aligned(left, right))
        found = self._one_value(left, right)
        if found is not None:
            base, ((a, a_values), (b, b_values)) = found
            tree = None if a is None or b is None else _try(op, a, b)
            if tree is not None or a is None or b is None:
                node = self._element(base.node, tree, lambda x: PRIMITIVES[op](a_values(x), b_values(x)))
                return base.of(node)
        if op in ("multiply", "divide"):
            for first, second in ((left, right), (right, left)) if op == "multiply" else ((left, right),):
                norm = self._normalized(op, first, second)
                if norm is not None:
                    return norm
        if (
            left.is_permuted
            and np.array_equal(left.index, right.index)
            and left.node.width == right.node.width
        ):
            return left.of(self._combined(op, left.node, right.node))
        return whole(self._combined(op, self.flat(left), self.flat(right)), left.shape, left.rows_at)

    def _combined(self, op: Combination, left: Node, right: Node) -> Node:
        key = (op, left.number, right.number)
        if key not in self._nodes:
            self._nodes[key] = CombineNode(self._place, (left, right), left.width, op)
        return self._nodes[key]

    def _normalized(self, op: Literal["multiply", "divide"], x: Rows, length: Rows) -> Rows | None:
        """A norm that is written out, also with its weight in front: (weight * x) / length."""
        node, weight = x.node, None
        if isinstance(node, AffineNode) and node.shift is None:
            weight, node = node.scale, node.sources[0]
        found = normalized(op, x.of(node), length)
        if found is None:
            return None
        kind, source, eps, factor = found
        made: Node = NormNode(self._place, (source,), source.width, kind, eps)
        if factor != 1:
            made = self._affine(made, Constant(np.full(made.width, factor)), None)
        return x.of(made if weight is None else self._affine(made, weight, None))

    def _one_value(self, *operands: Rows) -> tuple[Rows, list[_Function]] | None:
        """The one value that all operands are functions of, and these functions; None if there are two."""
        parts = [_unwrapped(each.node) for each in operands]
        base, first = parts[0][0], operands[0]
        if any(part[0] is not base for part in parts):
            return None
        if any(not np.array_equal(each.index, first.index) for each in operands[1:]):
            return None
        return first.of(base), [(tree, values) for _, tree, values in parts]

    def _by_value(self, compute: Callable[..., Floats], *operands: Operand) -> Rows:
        """A function of one value that no formula spells."""
        given = [_scalar(each) for each in operands]
        if any(isinstance(each, Constant) for each in given):
            raise ModelLoadError("a condition with a constant per feature is no step of an MLP")
        rows = [each for each in given if isinstance(each, Rows)]
        shaped = [self._compact(aligned(rows[0], each)[1]) for each in rows]
        found = self._one_value(*shaped)
        if found is None:
            raise ModelLoadError("a choice between two values is no step of an MLP: maximum and minimum are")
        base, functions = found
        remaining = iter(functions)
        parts = [_number(each) if isinstance(each, float) else next(remaining)[1] for each in given]
        base = self._compact(base)
        node = self._made_element(
            base.node, None, lambda x: np.asarray(compute(*(part(x) for part in parts)), np.float64)
        )
        return base.of(node)

    def _masked(self, value: Operand, mask: Floats) -> Operand:
        if isinstance(value, Rows):
            return self.arithmetic("multiply", value, Constant(mask))
        array = value.exact if isinstance(value, Constant) else np.asarray(float(value))
        return Constant(np.where(mask != 0, array, 0.0))

    def _with_vector(self, op: Combination, x: Rows, vector: Constant) -> Rows:
        if op in ("maximum", "minimum"):  # max(x, v) = relu(x - v) + v
            sign = 1.0 if op == "maximum" else -1.0
            above = self._with_vector("subtract", x, vector)
            kept = self.function("relu", self.arithmetic("multiply", above, sign))
            return self._with_vector("add", self.arithmetic("multiply", kept, sign), vector)
        x, constant = self._fitted(x, vector)
        if op == "multiply":
            return x.of(self._affine(x.node, constant, None))
        if op == "add":
            return x.of(self._affine(x.node, None, constant))
        if op == "subtract":
            return x.of(self._affine(x.node, None, Constant(-constant.exact)))
        with np.errstate(all="ignore"):
            return x.of(self._affine(x.node, Constant(1 / constant.exact), None))

    def _from_vector(self, op: Combination, vector: Constant, x: Rows) -> Rows:
        if op == "subtract":
            return self._with_vector("add", self.arithmetic("multiply", x, -1.0), vector)
        if op == "divide":
            return self._with_vector("multiply", self.arithmetic("divide", 1.0, x), vector)
        return self._with_vector(op, x, vector)

    def _fitted(self, x: Rows, vector: Constant) -> tuple[Rows, Constant]:
        """x in the shape of both, and the vector in the order of its node's features."""
        array, ahead = vector.array, 0
        ndim = max(array.ndim, x.index.ndim)
        ahead = ndim - x.index.ndim
        rows_at = x.rows_at + ahead
        array = array.reshape((1,) * (ndim - array.ndim) + array.shape)
        if array.shape[rows_at] != 1:
            raise ModelLoadError(f"a constant of shape {vector.shape} has a value of its own for each row")
        shape = np.broadcast_shapes(x.shape, array.shape)
        x = Rows(x.node, np.broadcast_to(x.index.reshape((1,) * ahead + x.shape), shape), rows_at)
        array = np.broadcast_to(array, shape).reshape(-1)
        if not x.is_permuted:
            x = whole(self.flat(x), x.shape, rows_at)
        if x.is_whole:
            same = array.size == vector.array.size
            return x, Constant(array, vector.origin if same else "", vector.dtype)
        ordered = np.empty_like(array)
        ordered[x.order] = array
        return x, Constant(ordered, "", vector.dtype)

    def _over(self, x: Rows, axes: Sequence[int], make: Callable[[Node], Node]) -> Rows:
        """A step over some axes of features, part by part where there are others beside them."""
        at = self._axes(x, axes)
        front = [axis for axis in range(x.index.ndim) if axis not in at]
        moved = permuted(x, [*front, *at])
        parts = moved.index.reshape(-1, math.prod(x.shape[axis] for axis in at))
        nodes = [make(self._gather(x.node, part)) for part in self._parts(list(parts))]
        made = whole(self._side_by_side(nodes), moved.shape, moved.rows_at)
        back = np.argsort([*front, *at]).tolist()
        return permuted(made, back)

    def _axes(self, x: Rows, axes: Sequence[int]) -> list[int]:
        at = sorted({x.axis(axis) for axis in axes})
        if x.rows_at in at:
            raise ModelLoadError(
                "it goes over the rows: the answer for a row must not depend on the rows beside it"
            )
        return at

    def _parts(self, parts: Sequence[Any]) -> Sequence[Any]:
        if len(parts) > MAX_PARTS:
            raise ModelLoadError(
                f"the same step for {len(parts)} parts of a row: expected at most {MAX_PARTS}; make rows of them"
            )
        return parts


def _unwrapped(node: Node) -> tuple[Node, formula.Node | None, Callable[[Floats], Floats]]:
    """What a node is a function of, and the function."""
    if isinstance(node, ElementNode):
        return node.sources[0], node.tree, node.values
    return node, formula.x(), _itself


def _composed(
    first_scale: Constant | None,
    first_shift: Constant | None,
    scale: Constant | None,
    shift: Constant | None,
) -> tuple[Constant | None, Constant | None]:
    """One scale and shift after another; what nothing is done to keeps its origin."""
    if scale is not None:
        first_scale = scale if first_scale is None else Constant(first_scale.exact * scale.exact)
        first_shift = None if first_shift is None else Constant(first_shift.exact * scale.exact)
    if shift is not None:
        first_shift = shift if first_shift is None else Constant(first_shift.exact + shift.exact)
    return first_scale, first_shift


def _itself(x: Floats) -> Floats:
    return x


def _number(value: float) -> Callable[[Floats], Floats]:
    return lambda x: np.asarray(value)


def _try(op: str, left: formula.Node, right: formula.Node) -> formula.Node | None:
    try:
        tree = formula.binary(op, left, right)
        if tree.op not in ("constant", "x"):
            formula.of(tree)
    except FormulaError:
        return None
    return tree


def _scalar(operand: Operand) -> Operand:
    """A constant of one value is a number."""
    if isinstance(operand, Constant) and operand.array.size == 1:
        return float(operand.exact.reshape(()))
    return operand if isinstance(operand, (Rows, Constant)) else float(operand)


def _flattened(constant: Constant | None) -> Constant | None:
    if constant is None or constant.array.ndim == 1:
        return constant
    return Constant(constant.array.reshape(-1), constant.origin, constant.dtype)


def _swapped(x: Rows) -> Rows:
    """With its last two axes exchanged."""
    axes = list(range(x.index.ndim))
    axes[-2:] = axes[-1], axes[-2]
    return permuted(x, axes)


def _own_order(x: Rows) -> Indices:
    return np.arange(x.index.size, dtype=np.intp).reshape(x.shape)


__all__ = ["Builder", "Constant", "Operand", "Place", "Rows", "reshaped"]
