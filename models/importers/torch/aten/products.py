# SPDX-License-Identifier: Apache-2.0
"""Products: linear, matmul, addmm, einsum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fused_mlp.models.importers.building.einsum import einsum
from fused_mlp.models.importers.building.rows import (
    Rows,
)
from fused_mlp.models.importers.torch.aten.calls import (
    Call,
    matrix,
    reads,
)

# Products


@reads("linear")
def _linear(call: Call, x: Any, weight: Any, bias: Any = None) -> Rows:
    if not isinstance(x, Rows) or isinstance(weight, Rows):
        return _matmul(call, x, weight)
    if weight.dim() == 1:
        return call.builder.matmul(x, call.tensor(weight))
    if isinstance(bias, Rows):
        return call.builder.arithmetic("add", call.builder.linear(x, call.tensor(weight)), bias)
    return call.builder.linear(x, call.tensor(weight), call.optional(bias))


@reads("matmul", "mm", "bmm", "mv", "dot", "linalg_matmul", "inner", "__matmul__")
def _matmul(call: Call, left: Any, right: Any) -> Rows:
    return call.builder.matmul(matrix(call, left), matrix(call, right))


@reads("addmm", "baddbmm", "addmv")
def _addmm(call: Call, bias: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1) -> Rows:
    product = _matmul(call, left, right)
    if alpha != 1:
        product = call.builder.arithmetic("multiply", product, float(alpha))
    if beta == 0:
        return product
    if beta != 1:
        bias = (
            call.builder.arithmetic("multiply", bias, float(beta)) if isinstance(bias, Rows) else bias * beta
        )
    return call.builder.arithmetic("add", product, call.operand(bias))


@reads("einsum")
def _einsum(call: Call, equation: str, operands: Sequence[Any], path: Any = None) -> Rows:
    return einsum(call.builder, equation, [matrix(call, each) for each in operands])
