# SPDX-License-Identifier: Apache-2.0
"""Reads each operator of ONNX on rows: calls of the builder, and views. rows.py follows the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.einsum import einsum
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.building.whole_numbers import is_ids
from fused_mlp.models.importers.onnx.categories import Categories, folded
from fused_mlp.models.importers.onnx.functions import ARITHMETIC, COMPARISONS, FUNCTIONS
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators import (
    arithmetic,
    classical,
    encoders,
    features,
    lookups,
    norms,
    views,
    whole,
)
from fused_mlp.models.importers.onnx.operators.products import product
from fused_mlp.models.importers.onnx.operators.values import Reader, Unreadable, Value, needed, operand

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader

_READERS: dict[str, Reader] = {
    **arithmetic.READERS,
    **classical.READERS,
    **encoders.READERS,
    **features.READERS,
    **lookups.READERS,
    **norms.READERS,
    **views.READERS,
}
# Take whole numbers as they are; all others compute with floats.
_TAKE_IDS = {*views.READERS, *lookups.READERS, "Cast", "CastLike", "Concat", "Floor", "Identity", "Imputer"}


def apply(reader: RowsReader, node: Node, inputs: list[Value]) -> Sequence[Value]:
    made = _of_categories(reader, node, inputs) or _of_ids(reader, node, inputs)
    if made is None:
        made = _of_floats(reader, node, [_in_floats(reader, node, each) for each in inputs])
    return made if isinstance(made, list) else [cast(Value, made)]


def _of_categories(reader: RowsReader, node: Node, inputs: list[Value]) -> Any:  # noqa: PLR0911 - a table
    """Tables of words and codes, as long as they are one."""
    first, last = inputs[0], inputs[-1]
    if node.op == "ArrayFeatureExtractor" and isinstance(first, Constant):
        return Unreadable(f"{node.where} answers class labels, not numbers")
    if node.op in encoders.ENCODERS:
        return encoders.ENCODERS[node.op](reader, node, first, inputs)
    if node.op == "OneHot" and isinstance(first, (Rows, Categories)):
        return lookups.one_hot(reader, node, first, inputs)
    if node.op == "Gather" and isinstance(first, Constant) and isinstance(last, (Rows, Categories)):
        return lookups.gather_of_table(reader, node, first, last)
    if not any(isinstance(each, Categories) for each in inputs):
        return None
    if isinstance(first, Categories) and node.op in views.READERS:
        viewed = views.READERS[node.op](reader, node, first.ids, inputs)
        listed = viewed if isinstance(viewed, list) else [viewed]
        return [Categories(each, first.values) if isinstance(each, Rows) else each for each in listed]
    if (
        node.op == "Concat"
        and isinstance(first, Categories)
        and all(isinstance(each, Categories) and list(each.values) == list(first.values) for each in inputs)
    ):
        ids = [each.ids for each in inputs if isinstance(each, Categories)]
        return Categories(reader.builder.concat(ids, node.attributes.get("axis", 1)), first.values)
    return folded(node, inputs, reader.opset)


def _of_ids(reader: RowsReader, node: Node, inputs: list[Value]) -> Value:
    return whole.of_whole_numbers(reader, node, inputs) if any(is_ids(each) for each in inputs) else None


def _in_floats(reader: RowsReader, node: Node, value: Value) -> Value:
    if isinstance(value, Categories):
        if value.values.dtype.kind == "O":
            raise ModelLoadError(f"{node.where} of words is not read: they are looked up as they are sent")
        return value.floats(reader.builder)
    if isinstance(value, Rows) and node.op not in _TAKE_IDS:
        return reader.builder.as_floats(value)
    return value


def _of_floats(reader: RowsReader, node: Node, inputs: list[Value]) -> Value | Sequence[Value]:  # noqa: PLR0911
    first = inputs[0]
    builder, op = reader.builder, node.op
    if op in ARITHMETIC or op in ("Sum", "Mean"):
        return arithmetic.arithmetic(builder, op, inputs)
    if op in COMPARISONS:
        return builder.compare(COMPARISONS[op], *map(operand, inputs))
    if op == "Where":
        return builder.where(*map(operand, inputs))
    if op in ("MatMul", "Gemm"):
        return product(builder, node, inputs)
    if op == "Einsum":
        return einsum(builder, node.attributes["equation"], [needed(each) for each in inputs])
    if op in ("Concat", "FeatureVectorizer"):
        return builder.concat([needed(each) for each in inputs], node.attributes.get("axis", 1))
    if op in ("And", "Or", "Xor"):
        return arithmetic.combined(builder, op, *map(operand, inputs))
    if isinstance(first, Rows) and op in FUNCTIONS:
        return builder.apply(first, FUNCTIONS[op](node.attributes))
    if isinstance(first, Rows) and op in _READERS:
        return _READERS[op](reader, node, first, inputs)
    raise ModelLoadError(f"{node.where} is not part of an MLP{hint(op)}")


def hint(op: str) -> str:
    if (
        "quant" in op.lower()
        or op.startswith("QLinear")
        or op in ("MatMulInteger", "MatMulNBits", "ConvInteger", "QGemm")
    ):
        return ": it is quantised in a way that is not read; export the model in float32"
    if op in ("Loop", "If", "Scan"):
        return ": it decides or repeats while it runs; nn.EmbeddingBag becomes a Loop: export nn.Embedding and a sum"
    return ""
