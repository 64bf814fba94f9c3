# SPDX-License-Identifier: Apache-2.0
"""The same values in another form: views, casts, parts, and parts side by side."""

# ruff: noqa: PLR0917 - the arguments, and their names, are ATen's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.rows import (
    PICKS_ROWS,
    REPEATS_ROWS,
    Rows,
    expanded,
    inserted,
    permuted,
    removed,
    taken,
)
from fused_mlp.models.importers.torch.aten.calls import (
    Call,
    listed,
    matrix,
    one_row,
    reads,
)
from fused_mlp.models.importers.torch.aten.refusals import DROPS

# The same values in another form


@reads(
    "detach", "detach_copy", "clone", "contiguous", "alias", "alias_copy", "lift_fresh_copy", "lift_fresh",
    "positive", "resolve_conj", "resolve_neg",
)  # fmt: skip
def _same(call: Call, x: Rows, *_: Any, **__: Any) -> Rows:
    return x


@reads("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(call: Call, x: Rows, share: float, train: bool) -> Rows:
    if train and share > 0:
        raise ModelLoadError(f"it drops values in eval mode too: {DROPS}")
    return x


@reads("native_dropout")
def _native_dropout(call: Call, x: Rows, share: float, train: bool | None) -> tuple[Rows, None]:
    return _dropout(call, x, share, bool(train)), None


@reads("to", "_to_copy", "float", "double", "half", "type_as")
def _cast(call: Call, x: Rows, *_: Any, **__: Any) -> Rows:
    if call.made.dtype == torch.bool:
        return x if call.given.dtype == torch.bool else call.builder.compare("not_equal", x, 0.0)
    if not call.made.dtype.is_floating_point:
        return call.builder.cut_off(x) if call.given.dtype.is_floating_point else x
    if call.made.dtype.itemsize < torch.float32.itemsize:
        name = str(call.made.dtype).removeprefix("torch.")
        raise ModelLoadError(
            f"it rounds to {name} on the way, which is not read: leave the cast out, and round with dtype={name!r}"
        )
    return x


@reads(
    "view", "reshape", "flatten", "unflatten", "_unsafe_view", "view_as", "reshape_as", "ravel", "view_copy",
    "_reshape_alias",
)  # fmt: skip
def _view(call: Call, x: Rows, *_: Any) -> Rows:
    if call.made.dtype != call.given.dtype:
        raise ModelLoadError("a view as another dtype is no step of an MLP")
    return call.view(x)


@reads("squeeze", "squeeze_copy")
def _squeeze(call: Call, x: Rows, dim: Any = None) -> Rows:
    axes = range(x.index.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return removed(x, list(axes))


@reads("unsqueeze")
def _unsqueeze(call: Call, x: Rows, dim: int) -> Rows:
    return inserted(x, dim)


@reads("expand", "expand_as", "broadcast_to", "expand_copy")
def _expand(call: Call, x: Any, *_: Any, **__: Any) -> Any:
    if isinstance(x, Tensor):  # expand_as, of a constant to rows
        sizes, _at = call.shape()
        return x.expand(sizes)
    return expanded(x, *call.shape())


@reads("permute")
def _permute(call: Call, x: Rows, dims: Sequence[int]) -> Rows:
    return permuted(x, dims)


@reads("transpose", "swapaxes", "swapdims")
def _transpose(call: Call, x: Rows, first: int, second: int) -> Rows:
    axes = list(range(x.index.ndim))
    axes[first], axes[second] = axes[second], axes[first]
    return permuted(x, axes)


@reads("t", "numpy_T", "mT", "matrix_H", "adjoint")
def _t(call: Call, x: Rows) -> Rows:
    return x if x.index.ndim < 2 else _transpose(call, x, -1, -2)


@reads("movedim", "moveaxis")
def _movedim(call: Call, x: Rows, source: Any, target: Any) -> Rows:
    return permuted(x, _moved(x.index.ndim, source, target))


def _moved(ndim: int, source: Any, target: Any) -> list[int]:
    sources = [each % ndim for each in ([source] if isinstance(source, int) else source)]
    targets = [each % ndim for each in ([target] if isinstance(target, int) else target)]
    order = [axis for axis in range(ndim) if axis not in sources]
    for to, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(to, axis)
    return order


@reads("repeat", "tile")
def _repeat(call: Call, x: Rows, repeats: Sequence[Any]) -> Rows:
    counts = [one_row(each) for each in repeats]
    ahead = len(counts) - x.index.ndim
    index = x.index.reshape((1,) * ahead + x.shape)
    if counts[x.rows_at + ahead] != 1:
        raise ModelLoadError(REPEATS_ROWS)
    return Rows(x.node, np.tile(index, counts), x.rows_at + ahead)


@reads("repeat_interleave")
def _repeat_interleave(call: Call, x: Rows, repeats: Any, dim: int | None = None, **_: Any) -> Rows:
    if not isinstance(repeats, int) or dim is None or x.axis(dim) == x.rows_at:
        raise ModelLoadError("expected one number of repetitions, of features")
    return Rows(x.node, np.repeat(x.index, repeats, axis=x.axis(dim)), x.rows_at)


# Parts, and parts side by side


@reads("select", "select_copy")
def _select(call: Call, x: Rows, dim: int, index: int) -> Rows:
    return taken(x, dim, index)


@reads("slice", "slice_copy")
def _slice(call: Call, x: Rows, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Rows:
    all_rows = isinstance(call.made.shape[x.rows_at], torch.SymInt) and start in (None, 0) and step == 1
    if x.axis(dim) == x.rows_at and all_rows and call.shape()[0] == list(x.shape):
        return x
    end = end if end is None or not isinstance(end, torch.SymInt) else None
    return taken(x, dim, slice(start, end, step))


@reads("narrow")
def _narrow(call: Call, x: Rows, dim: int, start: int, length: Any) -> Rows:
    if start < 0:
        start += x.shape[x.axis(dim)]
    return _slice(call, x, dim, start, None if isinstance(length, torch.SymInt) else start + length)


@reads(
    "split", "split_with_sizes", "split_copy", "split_with_sizes_copy", "chunk", "tensor_split", "unsafe_split",
    "unsafe_chunk",
)  # fmt: skip
def _split(call: Call, x: Rows, _: Any, dim: int = 0) -> list[Rows]:
    """In the sizes that torch says."""
    parts, start = [], 0
    for each in call.made:
        size = each.shape[x.axis(dim)]
        if isinstance(size, torch.SymInt):
            raise ModelLoadError("it splits the rows")
        parts.append(taken(x, dim, slice(start, start + size)))
        start += size
    return parts


@reads("unbind")
def _unbind(call: Call, x: Rows, dim: int = 0) -> list[Rows]:
    return [taken(x, dim, position) for position in range(x.shape[x.axis(dim)])]


@reads("index")
def _index(call: Call, x: Any, indices: Sequence[Any]) -> Rows:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if isinstance(x, Tensor) and len(given) == 1 and given[0][0] == 0:
        return call.builder.embedding(given[0][1], call.constant(x))
    if not isinstance(x, Rows) or not all(isinstance(index, Tensor) for _, index in given):
        raise ModelLoadError("it picks features by computed positions: expected constant ones")
    if len(given) == 1 and given[0][1].dim() == 1:
        return taken(x, given[0][0], positions(given[0][1]))
    places: list[Any] = [slice(None)] * x.index.ndim
    at = 0
    for axis, index in given:
        found = index.nonzero(as_tuple=True) if index.dtype == torch.bool else (index,)
        for offset, each in enumerate(found):
            at = axis + offset
            if at == x.rows_at:
                raise ModelLoadError(PICKS_ROWS)
            places[at] = each.numpy()
    return Rows(x.node, x.index[tuple(places)], call.shape()[1])


def positions(index: Any) -> Any:
    if not isinstance(index, Tensor):
        raise ModelLoadError("it picks features by computed positions: expected constant ones")
    positions = index.detach().cpu().numpy()
    if positions.ndim != 1:
        raise ModelLoadError("expected positions along one axis")
    return np.flatnonzero(positions) if positions.dtype == bool else positions.astype(np.intp)


@reads("flip")
def _flip(call: Call, x: Rows, dims: Sequence[int]) -> Rows:
    for dim in dims:
        x = taken(x, dim, slice(None, None, -1))
    return x


@reads("roll")
def _roll(call: Call, x: Rows, shifts: Any, dims: Any = ()) -> Rows:
    for shift, dim in zip(listed(shifts), listed(dims), strict=True):
        x = taken(x, dim, np.roll(np.arange(x.shape[x.axis(dim)]), shift))
    return x


@reads("cat", "concat", "concatenate")
def _cat(call: Call, parts: Sequence[Any], dim: int = 0) -> Rows:
    kept = [part for part in parts if not isinstance(part, Tensor) or part.numel()]
    return call.builder.concat([matrix(call, part) for part in kept], dim)


@reads("stack")
def _stack(call: Call, parts: Sequence[Any], dim: int = 0) -> Rows:
    return _cat(
        call,
        [part.unsqueeze(dim) if isinstance(part, Tensor) else inserted(part, dim) for part in parts],
        dim,
    )


@reads("hstack", "column_stack")
def _hstack(call: Call, parts: Sequence[Any]) -> Rows:
    return _cat(
        call,
        [inserted(part, 1) if isinstance(part, Rows) and part.index.ndim == 1 else part for part in parts],
        1,
    )


@reads("copy")
def _copy(call: Call, target: Any, source: Any, *_: Any) -> Any:
    """A write to a part of a value, as torch.export spells it: with a result of its own."""
    if isinstance(source, Rows):
        return expanded(source, *call.shape())
    return call.builder.filled(call.constant(source), target)


@reads("slice_scatter")
def _slice_scatter(
    call: Call, x: Rows, part: Rows, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Rows:
    if x.axis(dim) == x.rows_at and start in (None, 0) and step == 1:
        return part  # all rows
    return call.builder.replaced(
        x, dim, slice(start, None if isinstance(end, torch.SymInt) else end, step), part
    )


@reads("select_scatter")
def _select_scatter(call: Call, x: Rows, part: Rows, dim: int, index: int) -> Rows:
    return call.builder.replaced(x, dim, index, part)


@reads("zeros_like", "new_zeros")
def _zeros_like(call: Call, *_: Any, **__: Any) -> Tensor:
    return torch.zeros(call.shape()[0], dtype=_constant_dtype(call))


@reads("ones_like", "new_ones")
def _ones_like(call: Call, *_: Any, **__: Any) -> Tensor:
    return torch.ones(call.shape()[0], dtype=_constant_dtype(call))


@reads("full_like", "new_full")
def _full_like(call: Call, x: Rows, *arguments: Any, **__: Any) -> Tensor:
    return torch.full(call.shape()[0], arguments[-1], dtype=_constant_dtype(call))


def _constant_dtype(call: Call) -> torch.dtype:
    return torch.float64 if call.made.dtype.is_floating_point else torch.int64
