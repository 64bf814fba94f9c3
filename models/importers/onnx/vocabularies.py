# SPDX-License-Identifier: Apache-2.0
"""The words, and the codes far apart, that a graph tells from each other: collected before it is read, so that an
input's vocabulary is known to every node that looks it up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fused_mlp.models.importers.onnx.categories import MAX_RANGE
from fused_mlp.models.importers.onnx.graph import Graph, Node
from fused_mlp.models.weights.dtypes import Array

# Operators that hand words on as they are.
_VIEWS = {
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Gather", "Slice", "Split", "Cast",
    "ArrayFeatureExtractor", "Expand",
}  # fmt: skip
_KEYS = (
    "keys_strings", "keys_int64s", "keys_floats", "keys_tensor", "cats_strings", "cats_int64s", "classes_strings",
)  # fmt: skip
_DEFAULTS = ("default_string", "default_int64", "default_float", "default_tensor")
Word = str | int


@dataclass
class Vocabulary:
    """`closed`: some node refuses, or says nothing about, words that it does not know."""

    words: dict[Word, int] = field(default_factory=dict)
    closed: bool = False

    @property
    def unknown(self) -> int | None:
        return None if self.closed else len(self.words)

    @property
    def values(self) -> Array:
        """The word of each place; None for unknown words."""
        made = np.empty(len(self.words) + (not self.closed), object)
        made[: len(self.words)] = list(self.words)
        return made


def vocabularies(graph: Graph) -> dict[str, Vocabulary]:
    """By the name of the input: those of strings, and of codes too far apart to be ids."""
    found = {each.name: Vocabulary() for each in graph.inputs if each.dtype == "string"}
    codes = {each.name: Vocabulary() for each in graph.inputs if "int" in each.dtype}
    # Maps a value to the inputs that it hands on, one bit each. Sets of names would take far more memory.
    origins = {each.name: 1 << at for at, each in enumerate(graph.inputs)}
    for node in graph.nodes:
        bits = 0
        for name in node.inputs:
            bits |= origins.get(name, 0)
        if node.op in _VIEWS:
            origins.update((output, bits) for output in node.outputs)
        words = _words(node, graph)
        if words is None and node.op != "Concat":
            continue
        inputs = {each.name for at, each in enumerate(graph.inputs) if bits >> at & 1}
        for name in inputs:
            vocabulary = found.get(name) or codes.get(name)
            if vocabulary is not None and words is not None:
                for word in words:
                    vocabulary.words.setdefault(word, len(vocabulary.words))
                vocabulary.closed |= not _takes_unknown(node)
        if node.op == "Concat" and len(inputs & found.keys()) > 1:
            _join(found, inputs)
    for each in found.values():
        each.words = each.words or {"": 0}  # nothing reads it
    far = {name: each for name, each in codes.items() if _is_far(each.words)}
    return found | far


def _join(found: dict[str, Vocabulary], names: set[str]) -> None:
    """Inputs that are put side by side share a vocabulary."""
    shared = Vocabulary()
    for name, each in found.items():
        if name in names:
            for word in each.words:
                shared.words.setdefault(word, len(shared.words))
            shared.closed |= each.closed
    found.update((name, shared) for name in found.keys() & names)


def keys_of(node: Node) -> list[Any] | None:
    """The keys of a LabelEncoder or OneHotEncoder."""
    for name in _KEYS:
        if (keys := node.attributes.get(name)) is not None and len(keys):
            return [
                each.decode(errors="replace") if isinstance(each, bytes) else each for each in _listed(keys)
            ]
    return None


def _words(node: Node, graph: Graph) -> Iterable[Word] | None:
    if node.op in ("LabelEncoder", "OneHotEncoder"):
        keys = keys_of(node)
        return keys if keys and isinstance(keys[0], (str, int)) else None
    if node.op == "Equal":
        constants = [graph.constants[name] for name in node.inputs if name in graph.constants]
        if constants and constants[0].dtype.kind in "OUS":
            return [str(each) for each in constants[0].reshape(-1)]
    return None


def _takes_unknown(node: Node) -> bool:
    if node.op == "OneHotEncoder":
        return bool(node.attributes.get("zeros", 1))
    return node.op == "Equal" or any(name in node.attributes for name in _DEFAULTS)


def _is_far(words: Iterable[Word]) -> bool:
    numbers = [each for each in words if isinstance(each, int)]
    return bool(numbers) and max(numbers) - min(numbers) > MAX_RANGE


def _listed(keys: Any) -> list[Any]:
    return keys if isinstance(keys, list) else list(keys.reshape(-1).tolist())
