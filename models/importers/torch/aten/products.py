# SPDX-License-Identifier: Apache-2.0
"""Products: linear, matmul, addmm, einsum, and what is made of them."""

# ruff: noqa: PLR0917 - the arguments, and their names, are ATen's

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.einsum import einsum
from fused_mlp.models.importers.building.rows import Rows, permuted
from fused_mlp.models.importers.torch.aten.calls import (
    Call,
    listed,
    matrix,
    reads,
)
from fused_mlp.models.importers.torch.aten.refusals import CONVOLUTION

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


@reads("tensordot")
def _tensordot(call: Call, left: Any, right: Any, dims: Sequence[int], other: Sequence[int]) -> Rows:
    sizes = [each.index.ndim if isinstance(each, Rows) else each.dim() for each in (left, right)]
    first = [chr(97 + axis) for axis in range(sizes[0])]
    second = [chr(97 + sizes[0] + axis) for axis in range(sizes[1])]
    for one, two in zip(dims, other, strict=True):
        second[two] = first[one]
    shared = {first[axis] for axis in dims}
    kept = [letter for letter in (*first, *second) if letter not in shared]
    equation = f"{''.join(first)},{''.join(second)}->{''.join(kept)}"
    return einsum(call.builder, equation, [matrix(call, left), matrix(call, right)])


@reads("conv1d", "conv2d")
def _conv(call: Call, x: Any, weight: Any, bias: Any = None, *options: Any) -> Rows:
    """With a kernel of one position: the same product at each."""
    defaults: tuple[Any, ...] = (1, 0, 1, 1)
    stride, padding, dilation, groups = options + defaults[len(options) :]
    plain = {*listed(stride), *listed(dilation)} == {1} and {*listed(padding)} == {0} and groups == 1
    if not isinstance(x, Rows) or x.rows_at != 0 or not plain or set(weight.shape[2:]) != {1}:
        raise ModelLoadError(CONVOLUTION)
    axes = list(range(x.index.ndim))
    last = permuted(x, [0, *axes[2:], 1])
    kernel = call.tensor(weight)
    made = call.builder.linear(
        last, replace(kernel, array=kernel.array.reshape(kernel.shape[:2])), call.optional(bias)
    )
    return permuted(made, [0, axes[-1], *axes[1:-1]])


@reads("bilinear")
def _bilinear(call: Call, left: Rows, right: Rows, weight: Any, bias: Any = None) -> Rows:
    """left W right, for each matrix W of the weight."""
    build, matrices = call.builder, call.tensor(weight)
    out, first, second = matrices.shape
    flat = matrices.of(matrices.array.transpose(0, 2, 1).reshape(out * second, first))
    half = build.linear(left, flat)
    half = Rows(half.node, half.index.reshape((*left.shape[:-1], out, second)), half.rows_at)
    made = build.summed_products(half, Rows(right.node, right.index[..., None, :], right.rows_at), (-1,))
    return made if bias is None else build.arithmetic("add", made, call.constant(bias))


@reads("cosine_similarity")
def _cosine_similarity(call: Call, left: Any, right: Any, dim: int = 1, eps: float = 1e-8) -> Rows:
    build = call.builder
    parts = [
        build.norm("l2", each, [dim], eps=eps)
        if isinstance(each, Rows)
        else call.constant(torch.nn.functional.normalize(each, dim=dim, eps=eps))
        for each in (left, right)
    ]
    return build.reduce("sum", build.arithmetic("multiply", *parts), [dim])


@reads("pairwise_distance")
def _pairwise_distance(
    call: Call, left: Any, right: Any, p: float = 2, eps: float = 1e-6, keepdim: bool = False
) -> Rows:
    if p != 2:
        raise ModelLoadError(f"expected the distance of order 2, got {p}")
    difference = call.builder.arithmetic("subtract", call.operand(left), call.operand(right))
    squares = call.builder.function("square", call.builder.arithmetic("add", difference, float(eps)))
    return call.builder.function("sqrt", call.builder.reduce("sum", squares, [-1], keep=keepdim))
