# SPDX-License-Identifier: Apache-2.0
"""Products with weights: MatMul and Gemm."""

from __future__ import annotations

from dataclasses import replace

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.onnx.graph import Node
from fused_mlp.models.importers.onnx.operators.values import Value, needed


def product(builder: Builder, node: Node, inputs: list[Value]) -> Value:
    left, right = (needed(each) for each in inputs[:2])
    attributes = node.attributes
    if (
        node.op == "MatMul"
        and isinstance(left, Rows)
        and isinstance(right, Constant)
        and len(right.shape) == 2
    ):
        return builder.linear(left, right.matrix_transposed)
    if node.op == "MatMul":
        return builder.matmul(left, right)
    if attributes.get("transA", 0):
        raise ModelLoadError(f"{node.where} transposes the rows (transA), which is not part of an MLP")
    if not isinstance(left, Rows) or not isinstance(right, Constant):
        return builder.matmul(left, right)
    weight = right if attributes.get("transB", 0) else right.matrix_transposed
    bias = needed(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else None
    if isinstance(bias, Rows):
        return builder.arithmetic(
            "add", builder.linear(left, _times(weight, attributes.get("alpha", 1.0))), bias
        )
    if isinstance(bias, Constant):
        if any(size != 1 for size in bias.shape[:-1]):
            raise ModelLoadError(
                f"{node.where}: expected a bias with one value per feature, got {bias.shape}"
            )
        bias = _times(replace(bias, array=bias.array.reshape(-1)), attributes.get("beta", 1.0))
    return builder.linear(left, _times(weight, attributes.get("alpha", 1.0)), bias)


def _times(tensor: Constant, factor: float) -> Constant:
    return tensor if factor == 1.0 else tensor.of(tensor.exact * factor)
