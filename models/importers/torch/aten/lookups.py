# SPDX-License-Identifier: Apache-2.0
"""Whole numbers: lookups by ids, and what is done to ids before. All other operators get ids as floats."""

# ruff: noqa: A002, PLR0917 - the arguments, and their names, are ATen's

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.rows import Rows, taken
from fused_mlp.models.importers.building.whole_numbers import MIRRORED, Integers, is_ids
from fused_mlp.models.importers.torch.aten.arithmetic import COMPARISONS
from fused_mlp.models.importers.torch.aten.calls import (
    ON_IDS,
    OPERATORS,
    Call,
    Reader,
    RowNumbers,
    reads,
    reads_ids,
)
from fused_mlp.models.importers.torch.aten.views import positions
from fused_mlp.models.program.spec import Comparison

_MODES: tuple[Literal["sum", "mean", "max"], ...] = ("sum", "mean", "max")
_ARITHMETIC = (
    "the model computes ids from ids: expected constants to add, to subtract, to multiply and divide by, and to take "
    "remainders of"
)

# Lookups


@reads("embedding")
def _embedding(call: Call, table: Any, ids: Any, *_: Any, **__: Any) -> Rows:
    return call.builder.embedding(ids, call.tensor(table))


@reads("index_select")
def _index_select(call: Call, x: Any, dim: int, index: Any) -> Any:
    if isinstance(x, Tensor) and dim == 0:
        return call.builder.embedding(index, call.constant(x))
    return taken(x, dim, positions(index))


@reads("embedding_bag")
def _embedding_bag(
    call: Call,
    table: Any,
    ids: Rows,
    offsets: Any = None,
    scale_grad: bool = False,
    mode: int = 0,
    sparse: bool = False,
    factors: Any = None,
    include_last: bool = False,
    padding: int | None = None,
) -> Any:
    length = ids.index.size
    if not isinstance(offsets, RowNumbers) or offsets.step != length or ids.rows_at != 0 or include_last:
        raise ModelLoadError(
            "expected ids of shape (rows, n), or ids and offsets as forward takes them: name them ids, offsets"
        )
    weights = None
    if factors is not None:
        weights = Rows(factors.node, factors.index.reshape(1, length))
    padding = None if padding is None or padding < 0 else padding
    bag = Rows(ids.node, ids.index.reshape(1, length))
    made = call.builder.bag(bag, call.tensor(table), _MODES[mode], padding=padding, factors=weights)
    return made, None, None, None


@reads("one_hot")
def _one_hot(call: Call, ids: Rows, classes: int = -1) -> Rows:
    if not isinstance(classes, int) or classes < 1:
        raise ModelLoadError("expected the number of classes: one_hot(ids, num_classes)")
    return call.builder.one_hot(ids, classes)


@reads("scatter")
def _scatter(call: Call, x: Any, dim: int, ids: Rows, value: Any) -> Rows:
    """zeros.scatter(1, ids, 1), a one-hot code."""
    plain = isinstance(x, Tensor) and not bool(x.any()) and isinstance(value, (int, float))
    if not plain or x.dim() != 2 or dim % 2 != 1 or ids.index.size != 1:
        raise ModelLoadError("expected a one-hot code of one id: zeros.scatter(1, ids, 1)")
    code = call.builder.one_hot(Rows(ids.node, ids.index.reshape(1)), x.shape[1])
    return code if value == 1 else call.builder.arithmetic("multiply", code, float(value))


@reads("gather")
def _gather(call: Call, x: Any, dim: int, index: Any, **_: Any) -> Rows:
    if not isinstance(x, Rows) or not isinstance(index, Rows):
        raise ModelLoadError("expected gather of computed features by computed positions")
    return call.builder.pick(x, dim, index)


@reads("bucketize")
def _bucketize(call: Call, x: Rows, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Rows:
    return call.builder.bucketize(x, call.tensor(boundaries), right=right)


@reads("searchsorted")
def _searchsorted(
    call: Call,
    boundaries: Any,
    x: Rows,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    **_: Any,
) -> Rows:
    return call.builder.bucketize(x, call.tensor(boundaries), right=right or side == "right")


# Ids pass through all that only moves values.
for _name in (
    "detach", "detach_copy", "clone", "contiguous", "alias", "alias_copy", "lift_fresh_copy", "lift_fresh", "positive",
    "view", "reshape", "flatten", "unflatten", "_unsafe_view", "view_as", "reshape_as", "ravel", "view_copy",
    "_reshape_alias", "squeeze", "squeeze_copy", "unsqueeze", "expand", "expand_as", "broadcast_to", "expand_copy",
    "permute", "transpose", "swapaxes", "swapdims", "t", "numpy_T", "mT", "movedim", "moveaxis", "repeat", "tile",
    "repeat_interleave", "select", "select_copy", "slice", "slice_copy", "narrow", "split", "split_with_sizes",
    "split_copy", "split_with_sizes_copy", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk", "unbind",
    "index_select", "index", "flip", "roll", "cat", "concat", "concatenate", "stack", "hstack", "column_stack",
    "embedding", "embedding_bag", "one_hot", "scatter", "gather", "zeros_like", "ones_like", "full_like",
):  # fmt: skip
    ON_IDS[_name] = OPERATORS[_name]


# Arithmetic


@reads_ids("to", "_to_copy", "long", "int")
def _cast(call: Call, x: Rows, *arguments: Any, **options: Any) -> Any:
    if call.made.dtype == torch.bool:
        return call.builder.compared("not_equal", x, np.array(0))
    return NotImplemented if call.made.dtype.is_floating_point else x


@reads_ids("add")
def _add(call: Call, left: Any, right: Any, *, alpha: int = 1) -> Any:
    if call.made.dtype.is_floating_point:
        return NotImplemented
    ids, other = (left, right) if is_ids(left) else (right, left)
    return call.builder.added(ids, _constant(other) * (alpha if ids is left else 1))


@reads_ids("sub", "subtract")
def _subtract(call: Call, left: Any, right: Any, *, alpha: int = 1) -> Any:
    if call.made.dtype.is_floating_point:
        return NotImplemented
    if not is_ids(left):
        return call.builder.added(call.builder.multiplied(right, np.array(-alpha)), _constant(left))
    return call.builder.added(left, -alpha * _constant(right))


@reads_ids("rsub")
def _rsub(call: Call, left: Any, right: Any, alpha: int = 1) -> Any:
    return _subtract(call, right, left, alpha=alpha)


@reads_ids("neg")
def _neg(call: Call, x: Rows) -> Rows:
    return call.builder.multiplied(x, np.array(-1))


@reads_ids("bucketize", "searchsorted")
def _bucketize_ids(call: Call, left: Any, other: Any, **_: Any) -> Any:
    """As floats, which do not change places with a boundary that is exact in float32."""
    boundaries = call.tensor(other if is_ids(left) else left).exact
    if np.abs(boundaries).max() >= 1 << 24:
        raise ModelLoadError("expected boundaries of whole numbers below 2^24")
    return NotImplemented


@reads_ids("mul", "multiply")
def _multiply(call: Call, left: Any, right: Any) -> Any:
    """Also ids * (ids < n), where the others become 0."""
    if call.made.dtype.is_floating_point:
        return NotImplemented
    ids, other = (left, right) if is_ids(left) else (right, left)
    if isinstance(other, Rows) and (masked := call.builder.replaced_where(other, False, np.array(0), ids)):
        return masked
    if call.made.dtype != torch.int64:
        raise ModelLoadError(
            "a product of ids in 32 bits or fewer may overflow: make them int64 first, ids.long()"
        )
    return call.builder.multiplied(ids, _constant(other))


@reads_ids("remainder")
def _remainder(call: Call, left: Any, right: Any) -> Any:
    return call.builder.remainder(_first(left), _constant(right), truncated=False)


@reads_ids("fmod")
def _fmod(call: Call, left: Any, right: Any) -> Any:
    return call.builder.remainder(_first(left), _constant(right), truncated=True)


@reads_ids("floor_divide")
def _floor_divide(call: Call, left: Any, right: Any) -> Any:
    return call.builder.divided(_first(left), _constant(right))


@reads_ids("bitwise_right_shift", "__rshift")
def _right_shift(call: Call, left: Any, right: Any) -> Any:
    return call.builder.divided(_first(left), 1 << _constant(right))


@reads_ids("bitwise_and", "__and")
def _bitwise_and(call: Call, left: Any, right: Any) -> Any:
    """ids & (2^k - 1) is the remainder of 2^k, also for negative ids."""
    if call.made.dtype == torch.bool:
        return NotImplemented
    ids, mask = (left, right) if is_ids(left) else (right, left)
    size = _constant(mask) + 1
    if (size < 1).any() or (size & (size - 1)).any():
        raise ModelLoadError("expected a mask of the lowest bits, ids & (2**k - 1)")
    return call.builder.remainder(_first(ids), size, truncated=False)


@reads_ids("div", "divide")
def _divide(call: Call, left: Any, right: Any, *, rounding_mode: str | None = None) -> Any:
    if call.made.dtype.is_floating_point:
        return NotImplemented
    if rounding_mode != "floor":
        raise ModelLoadError("expected ids that are divided with rounding_mode='floor', or //")
    return _floor_divide(call, left, right)


@reads_ids("clamp", "clip", "clamp_min", "clamp_max")
def _clamp(
    call: Call, x: Rows, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None
) -> Any:
    low, high = min if low is None else low, max if high is None else high
    if call.made.dtype.is_floating_point:
        return NotImplemented
    least, most = (None if each is None else _constant(each) for each in (low, high))
    return call.builder.clipped(x, least, most)


ON_IDS["clamp_max"] = lambda call, x, high: _clamp(call, x, None, high)


@reads_ids("maximum")
def _maximum(call: Call, left: Any, right: Any) -> Any:
    ids, other = (left, right) if is_ids(left) else (right, left)
    return _clamp(call, ids, other)


@reads_ids("minimum")
def _minimum(call: Call, left: Any, right: Any) -> Any:
    ids, other = (left, right) if is_ids(left) else (right, left)
    return _clamp(call, ids, None, other)


def _comparison(op: Comparison) -> Reader:
    def read(call: Call, left: Any, right: Any) -> Any:
        ids, other, named = (left, right, op) if is_ids(left) else (right, left, MIRRORED[op])
        if isinstance(other, float) or (isinstance(other, Tensor) and other.is_floating_point()):
            return NotImplemented
        return call.builder.compared(named, ids, _constant(other))

    return read


for _name, _op in COMPARISONS.items():
    ON_IDS[_name] = _comparison(_op)


@reads_ids("where")
def _where(call: Call, condition: Any, left: Any, right: Any) -> Any:
    if call.made.dtype.is_floating_point or not isinstance(condition, Rows):
        return NotImplemented
    ids, other, holds = (right, left, True) if is_ids(right) else (left, right, False)
    made = call.builder.replaced_where(condition, holds, _constant(other), ids)
    if made is None:
        raise ModelLoadError(
            "expected a comparison of the same ids with a number, torch.where(ids == -1, 0, ids)"
        )
    return made


@reads_ids("masked_fill")
def _masked_fill(call: Call, x: Any, mask: Any, value: Any) -> Any:
    return _where(call, mask, value, x)


def _first(ids: Any) -> Rows:
    if not is_ids(ids):
        raise ModelLoadError(_ARITHMETIC)
    found: Rows = ids
    return found


def _constant(value: Any) -> Integers:
    """A whole number, or a tensor of some."""
    if isinstance(value, Tensor) and not value.is_floating_point():
        return value.numpy().astype(np.int64)
    if isinstance(value, int):
        return np.array(value, np.int64)
    raise ModelLoadError(_ARITHMETIC)
