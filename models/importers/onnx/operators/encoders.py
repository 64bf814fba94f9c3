# SPDX-License-Identifier: Apache-2.0
"""Encoders of words, codes and missing values: LabelEncoder, OneHotEncoder, Imputer and their relatives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows, inserted, taken
from fused_mlp.models.importers.building.selection import MAX_MATRIX
from fused_mlp.models.importers.building.whole_numbers import is_ids
from fused_mlp.models.importers.onnx.categories import Categories, between
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.values import Reader, Value, array_of
from fused_mlp.models.importers.onnx.vocabularies import keys_of
from fused_mlp.models.weights.dtypes import Array

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader

_DEFAULTS = {"strings": "_Unused", "int64s": -1, "floats": 0.0}
_MAX_FLOAT_KEYS = 1 << 10


def blank_code(size: int, classes: int) -> Array:
    """(size, classes), of zeros."""
    if size * classes > MAX_MATRIX:
        raise ModelLoadError(
            f"a one-hot code of {classes} classes: expected at most {math.isqrt(MAX_MATRIX)}; use an embedding"
        )
    return np.zeros((size, classes))


def _label_encoder(reader: RowsReader, node: Node, x: Rows | Categories, _: list[Value]) -> Value:
    keys, (values, default) = keys_of(node), _labels(node)
    if keys is None or len(keys) != len(values):
        raise ModelLoadError(f"expected as many values as keys, got {len(values)} and {len(keys or ())}")
    dtype = object if values.dtype.kind in "OUS" else values.dtype
    if isinstance(x, Rows) and not is_ids(x):
        return _of_floats(reader, x, keys, values, default)
    known = x if isinstance(x, Categories) else between(reader.builder, x, min(keys), max(keys))
    return known.mapped(dict(zip(keys, values.tolist(), strict=True)), default, dtype)


def _labels(node: Node) -> tuple[Array, Any]:
    """The value of each key, in the order of the keys, and the default for all others."""
    attributes = node.attributes
    if "classes_strings" in attributes:  # of the first version: a word for its place
        return np.arange(len(attributes["classes_strings"])), attributes.get("default_int64", -1)
    if "values_tensor" in attributes:
        values = np.asarray(attributes["values_tensor"]).reshape(-1)
        default = attributes.get("default_tensor")
        fallback = _DEFAULTS[
            "strings" if values.dtype.kind in "OUS" else "floats" if values.dtype.kind == "f" else "int64s"
        ]
        return values, fallback if default is None else np.asarray(default).reshape(-1).tolist()[0]
    for kind, fallback in _DEFAULTS.items():
        if attributes.get(f"values_{kind}"):
            dtype = {"strings": object, "int64s": np.int64, "floats": np.float32}[kind]
            default = attributes.get(f"default_{kind.removesuffix('s')}", fallback)
            return np.array(attributes[f"values_{kind}"], dtype), default
    raise ModelLoadError("expected values_strings, values_int64s, values_floats or values_tensor")


def _of_floats(reader: RowsReader, x: Rows, keys: list[Any], values: Array, default: Any) -> Rows:
    """The sum of value - default over the keys that a number equals: one at most."""
    if len(keys) > _MAX_FLOAT_KEYS or values.dtype.kind in "OUS":
        raise ModelLoadError(
            f"expected numbers for at most {_MAX_FLOAT_KEYS} keys of floats, got {len(keys)}"
        )
    builder = reader.builder
    wide = inserted(x, x.index.ndim)
    equal = builder.compare("equal", wide, Constant(np.array(keys, np.float32)))
    steps = Constant((values.astype(np.float64) - default)[None, :], "", "")
    made = builder.linear(equal, steps, Constant(np.array([float(default)]), "", ""))
    return Rows(made.node, made.index[..., 0], made.rows_at)


def _one_hot_encoder(reader: RowsReader, node: Node, x: Rows | Categories, _: list[Value]) -> Rows:
    keys = keys_of(node) or []
    if isinstance(x, Rows) and not is_ids(x):
        x = reader.builder.cut_off(x)
    known = x if isinstance(x, Categories) else between(reader.builder, x, min(keys), max(keys))
    if not node.attributes.get("zeros", 1):
        known = _only(reader, known, keys)
    places = {key: place for place, key in enumerate(keys)}
    table = blank_code(len(known.values), len(keys))
    for row, value in enumerate(known.values.tolist()):
        if value in places:
            table[row, places[value]] = 1
    return reader.builder.embedding(known.ids, Constant(table, fixed=True), code=True)


def _only(reader: RowsReader, known: Categories, keys: list[Any]) -> Categories:
    """Its own words and no others, which the door then refuses: those that lie side by side in a vocabulary."""
    places = [place for place, value in enumerate(known.values.tolist()) if value in keys]
    start, count = places[0], len(places)
    if places != list(range(start, start + count)) or count == len(known.values):
        return known
    return Categories(reader.builder.added(known.ids, np.array(-start)), known.values[start : start + count])


def _imputer(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    """Numbers for those that are missing: NaN, or a number that stands for it. One for all, or one per feature."""
    builder, attributes = reader.builder, node.attributes
    if is_ids(x):
        missing, numbers = attributes.get("replaced_value_int64", 0), attributes["imputed_value_int64s"]
        columns = x.shape[-1] if len(numbers) > 1 else 1
        parts = []
        for at, by in zip(range(columns), numbers, strict=True):
            part = taken(x, -1, slice(at, at + 1)) if columns > 1 else x
            found = builder.compared("equal", part, np.array(missing))
            made = builder.replaced_where(found, True, np.array(by), part)
            assert made is not None
            parts.append(made)
        return parts[0] if columns == 1 else builder.concat(parts, -1)
    missing = attributes.get("replaced_value_float", 0.0)
    by = Constant(np.array(attributes["imputed_value_floats"], np.float32), "", "float32")
    found = builder.is_nan(x) if np.isnan(missing) else builder.compare("equal", x, float(missing))
    return builder.where(found, by, x)


def _binarizer(reader: RowsReader, node: Node, x: Rows, _: list[Value]) -> Rows:
    return reader.builder.compare(
        "greater", reader.builder.as_floats(x), float(node.attributes.get("threshold", 0.0))
    )


def _array_feature_extractor(_: RowsReader, node: Node, x: Rows | Categories, inputs: list[Value]) -> Value:
    positions = array_of(inputs[1], node).reshape(-1).astype(np.intp)
    if isinstance(x, Categories):
        return Categories(taken(x.ids, -1, positions), x.values)
    return taken(x, -1, positions)


READERS: dict[str, Reader] = {
    "Binarizer": _binarizer,
    "Imputer": _imputer,
}
# Also for categories.
ENCODERS: dict[str, Any] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "LabelEncoder": _label_encoder,
    "OneHotEncoder": _one_hot_encoder,
}
