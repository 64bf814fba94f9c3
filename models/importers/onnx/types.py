# SPDX-License-Identifier: Apache-2.0
"""The type of each value of a graph, in a letter: f for floats, i for whole numbers, b for truths, s for texts. Whole
numbers that a model computes are floats of its program, where only this type tells that a cast changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fused_mlp.models.importers.onnx.functions import COMPARISONS
from fused_mlp.models.importers.onnx.graph import Node

_TRUTHS = {*COMPARISONS, "Not", "And", "Or", "Xor", "IsNaN", "IsInf"}
_WHOLE = {"ArgMax", "ArgMin", "Shape", "Size"}
_FLOATS = {
    "Scaler",
    "Normalizer",
    "OneHotEncoder",
    "LinearClassifier",
    "LinearRegressor",
    "FeatureVectorizer",
}
# By TensorProto.DataType; all others are whole numbers.
_LETTERS = {1: "f", 10: "f", 11: "f", 16: "f", 8: "s", 9: "b"}


def letter_of(dtype: np.dtype[Any]) -> str:
    return {"O": "s", "U": "s", "S": "s", "u": "i", "V": "f"}.get(dtype.kind, dtype.kind)


def type_of(node: Node, types: Mapping[str, str]) -> str:
    if node.op in _TRUTHS:
        return "b"
    if node.op in _WHOLE:
        return "i"
    if node.op in _FLOATS:
        return "f"
    if node.op == "Cast":
        return _LETTERS.get(node.attributes.get("to", 1), "i")
    if node.op == "LabelEncoder":
        made = [key for key in node.attributes if key.startswith("values_")]
        return {"values_strings": "s", "values_floats": "f"}.get(made[0] if made else "", "i")
    at = {"Where": 1, "OneHot": 2, "CastLike": 1}.get(node.op, 0)
    return types.get(node.inputs[at], "f") if len(node.inputs) > at else "f"
