# SPDX-License-Identifier: Apache-2.0
"""What each operator of ONNX makes of rows: calls of the builder, and views. rows.py follows the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.einsum import einsum
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.onnx.functions import ARITHMETIC, COMPARISONS, FUNCTIONS
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators import arithmetic, classical, features, norms, views
from fused_mlp.models.importers.onnx.operators.products import product
from fused_mlp.models.importers.onnx.operators.values import Reader, Value, needed, operand

if TYPE_CHECKING:
    from fused_mlp.models.importers.onnx.rows import RowsReader

_READERS: dict[str, Reader] = {
    **arithmetic.READERS,
    **classical.READERS,
    **features.READERS,
    **norms.READERS,
    **views.READERS,
}


def apply(reader: RowsReader, node: Node, inputs: list[Value]) -> Sequence[Value]:
    first = inputs[0]
    builder, op = reader.builder, node.op
    made: Value | Sequence[Value]
    if op in ARITHMETIC or op in ("Sum", "Mean"):
        made = arithmetic.arithmetic(builder, op, inputs)
    elif op in COMPARISONS:
        made = builder.compare(COMPARISONS[op], *map(operand, inputs))
    elif op == "Where":
        made = builder.where(*map(operand, inputs))
    elif op in ("MatMul", "Gemm"):
        made = product(builder, node, inputs)
    elif op == "Einsum":
        made = einsum(builder, node.attributes["equation"], [needed(each) for each in inputs])
    elif op == "Concat":
        made = builder.concat([needed(each) for each in inputs], node.attributes.get("axis", 1))
    elif isinstance(first, Rows) and op in FUNCTIONS:
        made = builder.apply(first, FUNCTIONS[op](node.attributes))
    elif isinstance(first, Rows) and op in _READERS:
        made = _READERS[op](reader, node, first, inputs)
    else:
        raise ModelLoadError(f"{node.where} is not part of an MLP{hint(op)}")
    return made if isinstance(made, list) else [cast(Value, made)]


def hint(op: str) -> str:
    if (
        "quant" in op.lower()
        or op.startswith("QLinear")
        or op in ("MatMulInteger", "MatMulNBits", "ConvInteger", "QGemm")
    ):
        return ": it is quantised in a way that is not read; export the model in float32"
    if op in ("Loop", "If", "Scan"):
        return ": it decides or repeats while it runs"
    return ""
