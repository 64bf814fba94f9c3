# SPDX-License-Identifier: Apache-2.0
"""From a reader's graph to an Mlp: folds it, names the steps, and settles the dtype."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import cast, get_args

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import (
    AffineNode,
    BagNode,
    BucketizeNode,
    ConcatNode,
    Constant,
    ElementNode,
    EmbeddingNode,
    GatedNode,
    InputNode,
    LinearNode,
    Node,
    NormNode,
    PlainNode,
    SliceNode,
    SoftmaxNode,
    Weights,
)
from fused_mlp.models.importers.finishing.folding import fold
from fused_mlp.models.importers.finishing.graph import ChangingGraph
from fused_mlp.models.importers.finishing.records import Layout, Record
from fused_mlp.models.program import formula
from fused_mlp.models.program.spec import (
    INPUT,
    Affine,
    Concat,
    Dtype,
    Elementwise,
    Embedding,
    Gated,
    Linear,
    MlpSpec,
    Norm,
    Output,
    Slice,
    Softmax,
    Step,
)
from fused_mlp.models.program.steps import Bag, Bucketize
from fused_mlp.models.program.steps.base import Unary
from fused_mlp.models.weights.dtypes import Array
from fused_mlp.models.weights.mlp import Mlp

_OF_NODES = {each.name for each in fields(Node)}
_SERVED: tuple[Dtype, ...] = get_args(Dtype)
_LONGEST = 190  # of the 200 characters that a name may have; the rest is for a number


class ExactMlp(Mlp):
    """A program with its tensors in float64, as they were folded: only checks run it."""

    def __init__(self, spec: MlpSpec, tensors: Mapping[str, Array]) -> None:
        self.spec = spec
        self._tensors = {name: np.asarray(array, np.float64) for name, array in tensors.items()}
        self.example = None
        self.source = ""


@dataclass
class Program:
    mlp: Mlp
    exact: Mlp
    origins: dict[str, str]  # our name of a tensor -> its name in the source, with .T where it is transposed
    fixed: frozenset[str]  # tensors in which nothing of the source's weights is


def finish(
    layout: Layout,
    input_shape: Sequence[int] | None,
    outputs: Sequence[tuple[str, Node, bool]],
    dtype: Dtype | None,
    *,
    trainable: bool,
) -> Program:
    """`outputs`: name, node, and whether the model squeezes it."""
    graph = ChangingGraph([node for _, node, _ in outputs], trainable=trainable)
    fold(graph)
    record = Record(graph.outputs, layout)
    nodes = [node for node in record.nodes if not isinstance(node, InputNode)]
    if not nodes:
        raise ModelLoadError("there is no step in it: the output is the input")
    names = _name(nodes)
    names[record.start.number] = INPUT
    writer = _Writer(names)
    for node in nodes:
        writer.add(node)
    try:
        spec = MlpSpec(
            in_features=record.start.width,
            steps=tuple(writer.steps),
            outputs=tuple(
                Output(name=name, value=names[node.number], squeeze=squeeze)
                for (name, _, squeeze), node in zip(outputs, record.outputs, strict=True)
            ),
            inputs=record.inputs,
            input_shape=None
            if input_shape is None or len(input_shape) < 2 or record.inputs is not None
            else tuple(input_shape),
            dtype=resolve_dtype(writer.dtypes or writer.other_dtypes, dtype),
        )
    except ValueError as error:
        raise ModelLoadError.from_validation(error) from error
    tensors = {name: constant.array for name, constant in writer.tensors.items()}
    exact = ExactMlp(spec, {name: constant.exact for name, constant in writer.tensors.items()})
    origins = {
        name: f"{constant.origin}.T" if constant.transposed else constant.origin
        for name, constant in writer.tensors.items()
        if constant.origin
    }
    fixed = {name for name, constant in writer.tensors.items() if constant.fixed}
    mlp = Mlp(spec, tensors)
    if dtype is None:  # else the caller wants floats
        mlp.quantized = frozenset(name for name, constant in writer.tensors.items() if constant.quantized)
    return Program(mlp, exact, origins, frozenset(fixed))


@dataclass
class _Writer:
    """Writes nodes as steps, and collects their tensors."""

    names: dict[int, str]
    steps: list[Step] = field(default_factory=list)
    tensors: dict[str, Constant] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)  # of products -> where it was met first
    other_dtypes: dict[str, str] = field(default_factory=dict)
    _shared: dict[tuple[object, ...], str] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        try:
            self.steps.append(self._step(node))
        except ValueError as error:
            raise ModelLoadError.from_validation(error, str(node.place)) from error

    def _step(self, node: Node) -> Step:  # noqa: PLR0911 - a table of steps
        name = self.names[node.number]
        sources = tuple(self.names[source.number] for source in node.sources)
        first = sources[0]
        match node:
            case LinearNode():
                halves = {"": (node.weight, node.bias)}
                return Linear(
                    name=name, input=first, out_features=node.width, bias=node.bias is not None,
                    weights=self._matrices(node, name, halves),
                )  # fmt: skip
            case GatedNode():
                halves = {"": node.up, "gate_": node.gate}
                return Gated(
                    name=name, input=first, out_features=node.width, bias=node.up[1] is not None,
                    weights=self._matrices(node, name, halves), function=formula.of(node.function).text,
                )  # fmt: skip
            case ElementNode():
                assert node.tree is not None
                return Elementwise(name=name, input=first, function=formula.of(node.tree).text)
            case AffineNode():
                weight, bias = self._vectors(node, name, node.scale, node.shift)
                return Affine(name=name, input=first, weight=weight, bias=bias)
            case NormNode():
                weight, bias = self._vectors(node, name, node.weight, node.bias)
                return Norm(name=name, input=first, kind=node.kind, eps=node.eps, weight=weight, bias=bias)
            case SoftmaxNode():
                return Softmax(name=name, input=first, op="log_softmax" if node.log else "softmax")
            case ConcatNode():
                return Concat(name=name, inputs=sources)
            case SliceNode():
                return Slice(name=name, input=first, start=node.start, stop=node.start + node.width)
            case EmbeddingNode():
                size, features = node.table.shape
                weights = self._matrices(node, name, {"": (node.table, None)})
                return Embedding(name=name, input=first, size=size, features=features, weights=weights)
            case BagNode():
                size, features = node.table.shape
                return Bag(
                    name=name, input=first, size=size, features=features, mode=node.mode, padding=node.padding,
                    factors=sources[1] if len(sources) > 1 else None,
                    weights=self._matrices(node, name, {"": (node.table, None)}),
                )  # fmt: skip
            case BucketizeNode():
                self.tensors[f"{name}.boundaries"] = node.boundaries
                return Bucketize(name=name, input=first, count=node.boundaries.array.size, right=node.right)
            case PlainNode():
                options = {
                    each.name: getattr(node, each.name) for each in fields(node) if each.name not in _OF_NODES
                }
                values = {"input": first} if issubclass(node.step, Unary) else {"inputs": sources}
                return cast(Step, node.step(name=name, **values, **options))
        raise AssertionError(node)

    def _matrices(self, node: Node, name: str, halves: Mapping[str, Weights]) -> str | None:
        """Keeps a product's tensors; the name of the step that has them already, if one does."""
        constants = [constant for half in halves.values() for constant in half]
        table = isinstance(node, (EmbeddingNode, BagNode))
        held = (constant and (constant.key if constant.origin else id(constant)) for constant in constants)
        key = (table, *halves, *held)
        if key in self._shared:
            return self._shared[key]
        self._shared[key] = name
        for half, (weight, bias) in halves.items():
            for kind, constant in (("weight", weight), ("bias", bias)):
                if constant is not None:
                    self.tensors[f"{name}.{half}{kind}"] = constant
                    if constant.dtype:
                        self.dtypes.setdefault(constant.dtype, node.place.where)
        return None

    def _vectors(
        self, node: Node, name: str, weight: Constant | None, bias: Constant | None
    ) -> tuple[bool, bool]:
        for kind, constant in (("weight", weight), ("bias", bias)):
            if constant is not None:
                self.tensors[f"{name}.{kind}"] = constant
                if constant.dtype:
                    self.other_dtypes.setdefault(constant.dtype, node.place.where)
        return weight is not None, bias is not None


def _name(nodes: Sequence[Node]) -> dict[int, str]:
    """A name for each. Those of weights come first: they are the names of the source's own tensors."""
    taken = {INPUT}
    names: dict[int, str] = {}
    owners: set[tuple[str, bool]] = set()
    for node in nodes:
        held = node.weight if isinstance(node, LinearNode) else getattr(node, "table", None)
        if held is not None and held.origin and held.key not in owners:
            owners.add(held.key)
            wanted = held.origin.removesuffix(".weight") if held.origin != "weight" else node.place.name
            names[node.number] = _unique(wanted, taken)
    for node in nodes:
        if node.number not in names:
            names[node.number] = _unique(node.place.name, taken)
    return names


def _unique(wanted: str, taken: set[str]) -> str:
    clean = re.sub(r"[^A-Za-z0-9_./:-]+", "_", wanted).lstrip("./:-")[:_LONGEST] or "step"
    name, number = clean, 1
    while name in taken:
        number += 1
        name = f"{clean}_{number}"
    taken.add(name)
    return name


def resolve_dtype(found: Mapping[str, str], asked: Dtype | None) -> Dtype:
    """`found`: the dtypes of the weights, and where each was met first."""
    for dtype, where in found.items():
        if dtype not in (*_SERVED, "float64"):
            raise ModelLoadError(f"{where}: {dtype} weights are not served, only {_one_of(_SERVED)}")
    if asked is not None:
        if asked not in _SERVED:
            raise ModelLoadError(f"dtype={asked!r}: expected {_one_of(_SERVED)}")
        return asked
    if len(found) > 1:
        texts = ", ".join(f"{dtype} ({where})" for dtype, where in found.items())
        raise ModelLoadError(f"weights of several dtypes: {texts}; choose one with dtype=...")
    for name in _SERVED:
        if name in found or not found:
            return name
    raise ModelLoadError("the weights are float64, which is not served; round them with dtype='float32'")


def _one_of(names: Iterable[str]) -> str:
    *head, tail = names
    return f"{', '.join(head)} or {tail}"
