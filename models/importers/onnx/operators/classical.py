# SPDX-License-Identifier: Apache-2.0
"""Operators of ai.onnx.ml, which scikit-learn's converter writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.norms import normalized
from fused_mlp.models.importers.onnx.operators.values import Reader, Unreadable, Value

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader


def _scaler(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    offset, scale = (
        np.array(node.attributes.get(name, [default]), np.float32)
        for name, default in (("offset", 0), ("scale", 1))
    )
    centred = reader.builder.arithmetic("subtract", x, Constant(offset, "", "float32"))
    return reader.builder.arithmetic("multiply", centred, Constant(scale, "", "float32"))


def _normalizer(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    kind = node.attributes.get("norm", "MAX")
    if kind in ("L1", "L2"):
        return normalized(reader, x, -1, int(kind[1]))
    largest = reader.builder.reduce("max", x, (-1,), keep=True)
    return reader.builder.arithmetic("divide", x, largest)


def _linear_model(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> list[Value]:
    coefficients = np.array(node.attributes["coefficients"], np.float32)
    weight = Constant(coefficients.reshape(-1, x.shape[-1]), "", "float32")
    given = node.attributes.get("intercepts")
    bias = None if given is None else Constant(np.array(given, np.float32), "", "float32")
    scores = reader.builder.linear(x, weight, bias)
    match node.attributes.get("post_transform", "NONE"):
        case "SOFTMAX":
            scores = reader.builder.softmax(scores, -1)
        case "LOGISTIC":
            scores = reader.builder.function("sigmoid", scores)
        case "NONE":
            pass
        case other:
            raise ModelLoadError(f"{node.where} with post_transform {other} is not part of an MLP")
    if node.op == "LinearRegressor":
        return [scores]
    if weight.shape[0] == 1:
        raise ModelLoadError(f"{node.where} with one row of coefficients for two classes is not read")
    _keep_labels(reader, node)
    return [Unreadable(f"{node.where} answers class labels, not numbers"), scores]


def _zip_map(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    _keep_labels(reader, node)
    return x


def _keep_labels(reader: RowsReader, node: Node) -> None:
    names = next(
        (
            node.attributes[key]
            for key in node.attributes
            if key.startswith("classlabels") and node.attributes[key]
        ),
        None,
    )
    if names is not None:
        reader.labels = tuple(str(name) for name in names)


READERS: dict[str, Reader] = {
    "LinearClassifier": _linear_model,
    "LinearRegressor": _linear_model,
    "Normalizer": _normalizer,
    "Scaler": _scaler,
    "ZipMap": _zip_map,
}
