# SPDX-License-Identifier: Apache-2.0
"""Graphs as tf2onnx writes Keras models with preprocessing layers: StringLookup and IntegerLookup as LabelEncoder,
Discretization as comparisons, CategoryEncoding as OneHot, Embedding as Gather."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

ROWS = 24
Feeds = dict[str, np.ndarray]
WORDS = ["amsterdam", "berlin", "cairo", "delhi"]


class GraphOf:
    """Builds a graph node by node; what is no name is an initializer."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.inputs: list[Any] = []
        self.feeds: Feeds = {}
        self.random = np.random.default_rng(1)

    def input(self, name: str, values: np.ndarray) -> str:
        kinds = {
            "O": TensorProto.STRING,
            "i": TensorProto.INT64,
            "f": TensorProto.FLOAT,
            "b": TensorProto.BOOL,
        }
        kind = TensorProto.INT32 if values.dtype == np.int32 else kinds[values.dtype.kind]
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["rows", *values.shape[1:]]))
        self.feeds[name] = values
        return name

    def node(self, op: str, *inputs: Any, domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
        names = [each if isinstance(each, str) else self._constant(each) for each in inputs]
        made = [f"{op.lower()}_{len(self.nodes)}_{at}" for at in range(outputs)]
        self.nodes.append(
            helper.make_node(op, names, made, name=f"{op}_{len(self.nodes)}", domain=domain, **attributes)
        )
        return made[0] if outputs == 1 else made

    def ml(self, op: str, *inputs: Any, **attributes: Any) -> str:
        return str(self.node(op, *inputs, domain="ai.onnx.ml", **attributes))

    def dense(self, x: str, before: int, after: int, activation: str = "Relu") -> str:
        weight = self.random.normal(size=(before, after)).astype(np.float32) / np.sqrt(before).astype(
            np.float32
        )
        made = self.node(
            "Add", self.node("MatMul", x, weight), self.random.normal(size=after).astype(np.float32)
        )
        return str(self.node(activation, made))

    def table(self, rows: int, width: int) -> np.ndarray:
        return self.random.normal(size=(rows, width)).astype(np.float32)

    def done(self, *heads: str) -> tuple[Any, Feeds]:
        outputs = [helper.make_tensor_value_info(head, TensorProto.FLOAT, None) for head in heads]
        graph = helper.make_graph(self.nodes, "keras", self.inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9), self.feeds

    def _constant(self, value: Any) -> str:
        name = f"const_{len(self.initializers)}"
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        self.initializers.append(numpy_helper.from_array(array, name))
        return name


def _words(known: bool = True, *shape: int) -> np.ndarray:
    words = np.array([*WORDS] if known else [*WORDS, "elsewhere"], object)
    return words[np.arange(ROWS * int(np.prod(shape))) % len(words)].reshape(ROWS, *shape)


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, *shape)).astype(np.float32)


def _ids(size: int, *shape: int, dtype: Any = np.int64) -> np.ndarray:
    return np.random.default_rng(0).integers(0, size, (ROWS, *shape)).astype(dtype)


def _lookup(g: GraphOf, name: str, *, default: int = 0) -> str:
    """StringLookup: place 0 is that of unknown words."""
    return g.ml("LabelEncoder", name, keys_strings=WORDS, values_int64s=[1, 2, 3, 4], default_int64=default)


def string_lookup_to_embedding() -> tuple[Any, Feeds]:
    g = GraphOf()
    found = _lookup(g, g.input("city", _words(False, 1)))
    vectors = g.node("Squeeze", g.node("Gather", g.table(5, 6), found, axis=0), np.array([1]))
    x = g.node("Concat", vectors, g.input("numbers", _numbers(3)), axis=1)
    return g.done(g.dense(g.dense(x, 9, 8), 8, 1, "Sigmoid"))


def string_lookup_to_one_hot() -> tuple[Any, Feeds]:
    g = GraphOf()
    found = _lookup(g, g.input("city", _words(False, 1)))
    hot = g.node("OneHot", found, np.array([5]), np.array([0.0, 1.0], np.float32), axis=-1)
    x = g.node("Reshape", hot, np.array([-1, 5]))
    return g.done(g.dense(g.dense(x, 5, 8), 8, 2, "Softmax"))


def string_lookup_to_multi_hot() -> tuple[Any, Feeds]:
    """CategoryEncoding("multi_hot") of several tags: 1 for each that occurs."""
    g = GraphOf()
    found = _lookup(g, g.input("tags", _words(False, 3)))
    hot = g.node("OneHot", found, np.array([5]), np.array([0.0, 1.0], np.float32), axis=-1)
    return g.done(
        g.dense(g.dense(g.node("ReduceMax", hot, np.array([1]), keepdims=0), 5, 8), 8, 2, "Softmax")
    )


def string_lookup_to_counts() -> tuple[Any, Feeds]:
    g = GraphOf()
    found = _lookup(g, g.input("tags", _words(False, 3)))
    hot = g.node("OneHot", found, np.array([5]), np.array([0.0, 1.0], np.float32), axis=-1)
    return g.done(
        g.dense(g.dense(g.node("ReduceSum", hot, np.array([1]), keepdims=0), 5, 8), 8, 2, "Softmax")
    )


def integer_lookup() -> tuple[Any, Feeds]:
    g = GraphOf()
    codes = g.input("code", np.array([7, 1_000_003, -12, 5], np.int64)[np.arange(ROWS) % 4].reshape(-1, 1))
    found = g.ml(
        "LabelEncoder", codes, keys_int64s=[7, 1_000_003, -12], values_int64s=[1, 2, 3], default_int64=0
    )
    vectors = g.node("Gather", g.table(4, 6), found, axis=0)
    return g.done(g.dense(g.node("Reshape", vectors, np.array([-1, 6])), 6, 1, "Sigmoid"))


def discretization() -> tuple[Any, Feeds]:
    """Discretization: how many boundaries are not above a number, then an embedding of it."""
    g = GraphOf()
    age = g.input("age", np.linspace(0, 90, ROWS, dtype=np.float32).reshape(-1, 1))
    above = g.node("GreaterOrEqual", age, np.array([18.0, 30.0, 45.0, 60.0], np.float32))
    bucket = g.node("ReduceSum", g.node("Cast", above, to=TensorProto.INT64), np.array([1]), keepdims=1)
    vectors = g.node("Reshape", g.node("Gather", g.table(5, 4), bucket, axis=0), np.array([-1, 4]))
    return g.done(g.dense(g.dense(vectors, 4, 8), 8, 1, "Sigmoid"))


def normalization_and_embedding() -> tuple[Any, Feeds]:
    g = GraphOf()
    numbers = g.node(
        "Div", g.node("Sub", g.input("numbers", _numbers(4)), np.arange(4) / 4), np.array([1, 2, 3, 4.0])
    )
    item = g.node("Cast", g.input("item", _ids(30, 1, dtype=np.int32)), to=TensorProto.INT64)
    vectors = g.node("Squeeze", g.node("Gather", g.table(30, 6), item, axis=0), np.array([1]))
    return g.done(g.dense(g.dense(g.node("Concat", numbers, vectors, axis=-1), 10, 8), 8, 1, "Sigmoid"))


def average_pooling_of_embeddings() -> tuple[Any, Feeds]:
    g = GraphOf()
    vectors = g.node("Gather", g.table(30, 6), g.input("history", _ids(30, 5)), axis=0)
    return g.done(g.dense(g.node("ReduceMean", vectors, np.array([1]), keepdims=0), 6, 1, "Sigmoid"))


def masked_average_of_embeddings() -> tuple[Any, Feeds]:
    g = GraphOf()
    history = g.input("history", _ids(8, 5))
    vectors = g.node("Gather", g.table(8, 6), history, axis=0)
    there = g.node("Cast", g.node("Not", g.node("Equal", history, np.array(0))), to=TensorProto.FLOAT)
    total = g.node(
        "ReduceSum",
        g.node("Mul", vectors, g.node("Unsqueeze", there, np.array([2]))),
        np.array([1]),
        keepdims=0,
    )
    count = g.node("Max", g.node("ReduceSum", there, np.array([1]), keepdims=1), np.array(1.0, np.float32))
    return g.done(g.dense(g.node("Div", total, count), 6, 1, "Sigmoid"))


def dot_of_two_embeddings() -> tuple[Any, Feeds]:
    """Dot(axes=1) of two towers: a batched MatMul."""
    g = GraphOf()
    user = g.node("Gather", g.table(20, 6), g.input("user", _ids(20)), axis=0)
    item = g.node("Gather", g.table(30, 6), g.input("item", _ids(30)), axis=0)
    product = g.node(
        "MatMul", g.node("Unsqueeze", user, np.array([1])), g.node("Unsqueeze", item, np.array([2]))
    )
    return g.done(g.node("Sigmoid", g.node("Squeeze", product, np.array([2]))))


def einsum_of_two_embeddings() -> tuple[Any, Feeds]:
    g = GraphOf()
    user = g.node("Gather", g.table(20, 6), g.input("user", _ids(20)), axis=0)
    item = g.node("Gather", g.table(30, 6), g.input("item", _ids(30)), axis=0)
    product = g.node("Einsum", user, item, equation="bd,bd->b")
    return g.done(g.node("Sigmoid", g.node("Unsqueeze", product, np.array([1]))))


def chosen_action() -> tuple[Any, Feeds]:
    """A row picks its own answer (GatherElements)."""
    g = GraphOf()
    answers = g.dense(g.input("state", _numbers(4)), 4, 6, "Tanh")
    return g.done(g.node("GatherElements", answers, g.input("action", _ids(6, 1)), axis=1))


def greedy_action() -> tuple[Any, Feeds]:
    """The value of the best action, and a table row for it."""
    g = GraphOf()
    answers = g.dense(g.input("state", _numbers(4)), 4, 6, "Tanh")
    best = g.node("ArgMax", answers, axis=1, keepdims=0)
    return g.done(g.dense(g.node("Gather", g.table(6, 3), best, axis=0), 3, 2, "Softmax"))


def hashed_crossing() -> tuple[Any, Feeds]:
    """HashedCrossing of two ids: an id made from both, modulo the number of bins."""
    g = GraphOf()
    crossed = g.node(
        "Mod",
        g.node("Add", g.node("Mul", g.input("a", _ids(7)), np.array(11)), g.input("b", _ids(11))),
        np.array(50),
    )
    return g.done(g.dense(g.node("Gather", g.table(50, 4), crossed, axis=0), 4, 1, "Sigmoid"))


def labels_of_words() -> tuple[Any, Feeds]:
    """A number for each word: LabelEncoder with floats, in the form of tensors."""
    g = GraphOf()
    number = g.ml(
        "LabelEncoder",
        g.input("city", _words(False, 1)),
        keys_strings=WORDS,
        values_floats=[0.5, -1.0, 2.0, 4.0],
        default_float=9.0,
    )
    x = g.node("Concat", number, g.input("numbers", _numbers(2)), axis=1)
    return g.done(g.dense(g.dense(x, 3, 8), 8, 1, "Sigmoid"))


def features_together() -> tuple[Any, Feeds]:
    """FeatureVectorizer and Imputer: missing numbers, and codes for which -1 is missing."""
    g = GraphOf()
    numbers = _numbers(2)
    numbers[::3, 0] = np.nan
    filled = g.ml(
        "Imputer",
        g.input("numbers", numbers),
        imputed_value_floats=[0.5, 1.5],
        replaced_value_float=float("nan"),
    )
    codes = g.ml(
        "Imputer", g.input("codes", _ids(5, 2) - 1), imputed_value_int64s=[3, 2], replaced_value_int64=-1
    )
    both = g.ml(
        "FeatureVectorizer", filled, g.node("Cast", codes, to=TensorProto.FLOAT), inputdimensions=[2, 2]
    )
    return g.done(g.dense(g.dense(both, 4, 8), 8, 1, "Sigmoid"))


def row_of_a_matrix() -> tuple[Any, Feeds]:
    """A row picks one of its own vectors (GatherND with batch_dims)."""
    g = GraphOf()
    vectors = g.node("Reshape", g.dense(g.input("state", _numbers(4)), 4, 12, "Tanh"), np.array([-1, 3, 4]))
    chosen = g.node("GatherND", vectors, g.input("which", _ids(3, 1)), batch_dims=1)
    return g.done(g.dense(chosen, 4, 2, "Softmax"))


def words_joined() -> tuple[Any, Feeds]:
    """Text is cut into words while the model runs."""
    g = GraphOf()
    clean = g.node("StringNormalizer", g.input("city", _words(False)), case_change_action="LOWER")
    return g.done(g.dense(g.node("Gather", g.table(5, 4), _lookup(g, clean), axis=0), 4, 1, "Sigmoid"))


GRAPHS: dict[str, Callable[[], tuple[Any, Feeds]]] = {
    each.__name__.replace("_", " "): each
    for each in (
        string_lookup_to_embedding, string_lookup_to_one_hot, string_lookup_to_multi_hot, string_lookup_to_counts,
        integer_lookup, discretization, normalization_and_embedding, average_pooling_of_embeddings,
        masked_average_of_embeddings, dot_of_two_embeddings, einsum_of_two_embeddings, chosen_action, greedy_action,
        hashed_crossing, labels_of_words, features_together, row_of_a_matrix, words_joined,
    )
}  # fmt: skip
