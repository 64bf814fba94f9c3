# SPDX-License-Identifier: Apache-2.0
"""Operators over the features of a row: sums, softmaxes, norms."""

# ruff: noqa: PLR0917 - the arguments, and their names, are ATen's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.rows import OVER_ROWS, Rows
from fused_mlp.models.importers.torch.aten.calls import (
    OPERATORS,
    Call,
    Reader,
    listed,
    reads,
)

# Over features


def _reduction(kind: Literal["sum", "mean", "max", "min", "prod"]) -> Reader:
    def read(call: Call, x: Rows, dim: Any = None, keepdim: bool = False, **_: Any) -> Rows:
        if dim is None or dim == []:
            raise ModelLoadError(OVER_ROWS)
        return call.builder.reduce(kind, x, listed(dim), keep=keepdim)

    return read


OPERATORS.update(
    {"sum": _reduction("sum"), "mean": _reduction("mean"), "prod": _reduction("prod")},
    amax=_reduction("max"),
    amin=_reduction("min"),
    any=_reduction("max"),
    all=_reduction("min"),
)


@reads("argmax")
def _argmax(call: Call, x: Rows, dim: int | None = None, keepdim: bool = False) -> Rows:
    return call.builder.argmax(x, dim, keep=keepdim)


@reads("argmin")
def _argmin(call: Call, x: Rows, dim: int | None = None, keepdim: bool = False) -> Rows:
    return call.builder.argmax(call.builder.arithmetic("multiply", x, -1.0), dim, keep=keepdim)


@reads("max")
def _max(call: Call, x: Rows, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(call, "max", x, (dim, keepdim))


@reads("min")
def _min(call: Call, x: Rows, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(call, "min", x, (dim, keepdim))


def _extreme(call: Call, kind: Literal["max", "min"], x: Any, options: tuple[Any, bool]) -> Any:
    """max(x, y), or the maximum over an axis and where it is."""
    dim, keep = options
    if isinstance(dim, (Rows, Tensor)):
        return call.builder.arithmetic(
            "maximum" if kind == "max" else "minimum", call.operand(x), call.operand(dim)
        )
    source = x if kind == "max" else call.builder.arithmetic("multiply", x, -1.0)
    return _reduction(kind)(call, x, dim, keep), call.builder.argmax(source, dim, keep=keep)


@reads("var")
def _var(
    call: Call, x: Rows, dim: Any = None, correction: Any = None, keepdim: bool = False, **options: Any
) -> Rows:
    """var.correction, and var.dim with its flag `unbiased`."""
    correction = options.get("unbiased", correction)
    return call.builder.variance(
        x, listed(dim), 1.0 if correction is None else float(correction), keep=keepdim
    )


@reads("std")
def _std(call: Call, *arguments: Any, **options: Any) -> Rows:
    return call.builder.function("sqrt", _var(call, *arguments, **options))


@reads("var_mean")
def _var_mean(
    call: Call, x: Rows, dim: Any = None, correction: Any = None, keepdim: bool = False, **options: Any
) -> Any:
    variance = _var(call, x, dim, correction, keepdim, **options)
    return variance, call.builder.reduce("mean", x, listed(dim), keep=keepdim)


@reads("std_mean")
def _std_mean(call: Call, *arguments: Any, **options: Any) -> Any:
    variance, mean = _var_mean(call, *arguments, **options)
    return call.builder.function("sqrt", variance), mean


@reads("linalg_vector_norm", "norm", "linalg_norm")
def _vector_norm(
    call: Call, x: Rows, order: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Rows:
    order = 2 if order is None else order
    if dim is None or order not in (1, 2):
        raise ModelLoadError(
            f"the norm of order {order} over {dim} is no step of an MLP: expected 1 or 2, over features"
        )
    sizes = call.builder.function("abs" if order == 1 else "square", x)
    total = call.builder.reduce("sum", sizes, listed(dim), keep=keepdim)
    return total if order == 1 else call.builder.function("sqrt", total)


@reads("logsumexp")
def _logsumexp(call: Call, x: Rows, dim: Any, keepdim: bool = False) -> Rows:
    return call.builder.log_sum_exp(x, listed(dim), keep=keepdim)


@reads("softmax", "_softmax")
def _softmax(call: Call, x: Rows, dim: int, *_: Any, **__: Any) -> Rows:
    return call.builder.softmax(x, dim)


@reads("log_softmax", "_log_softmax")
def _log_softmax(call: Call, x: Rows, dim: int, *_: Any, **__: Any) -> Rows:
    return call.builder.softmax(x, dim, log=True)


# Norms


def _last(shape: Sequence[int]) -> list[int]:
    return list(range(-len(shape), 0))


@reads("layer_norm")
def _layer_norm(
    call: Call,
    x: Rows,
    shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Rows:
    return call.builder.norm(
        "layer", x, _last(shape), eps=eps, weight=call.optional(weight), bias=call.optional(bias)
    )


@reads("native_layer_norm")
def _native_layer_norm(call: Call, *arguments: Any) -> Any:
    return _layer_norm(call, *arguments), None, None


@reads("rms_norm")
def _rms_norm(
    call: Call, x: Rows, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Rows:
    if eps is None:
        eps = float(torch.finfo(call.made.dtype).eps)
    return call.builder.norm("rms", x, _last(shape), eps=eps, weight=call.optional(weight))


@reads("_fused_rms_norm")
def _fused_rms_norm(
    call: Call, x: Rows, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    if eps is None:
        eps = float(torch.finfo(call.made[0].dtype).eps)
    return _rms_norm(call, x, shape, weight, eps), None


@reads("batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(call: Call, x: Rows, weight: Any, bias: Any, mean: Any, variance: Any, *options: Any) -> Any:
    functional = len(options) == 2  # without the flag of training: momentum, eps
    if mean is None or variance is None or (not functional and options[0]):
        raise ModelLoadError("it keeps no running statistics: its output depends on the batch")
    made = call.builder.batch_norm(
        x,
        call.tensor(mean),
        call.tensor(variance),
        weight=call.optional(weight),
        bias=call.optional(bias),
        eps=options[1] if functional else options[2],
    )
    return (made, None, None) if functional else made


@reads("group_norm")
def _group_norm(
    call: Call, x: Rows, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Rows:
    return call.builder.group_norm(x, groups, eps=eps, weight=call.optional(weight), bias=call.optional(bias))
