# SPDX-License-Identifier: Apache-2.0
"""A value of a reader's graph: a node, and which of its features stands where in a tensor of any shape. Views,
permutations, selections and broadcasts change that index alone; no step comes of them until one is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Indices, Node
from fused_mlp.models.program.spec import MAX_WIDTH

# Why operations on the rows themselves are refused.
OVER_ROWS = "it goes over the rows: the answer for a row must not depend on the rows beside it"
PICKS_ROWS = "it picks rows: every row is answered, whatever rows are beside it"
REPEATS_ROWS = "it repeats rows: every row of an answer comes from one row of the input"
# Features of a value that is only looked at, such as a broadcast that is summed up.
_MAX_VIEW = 4 * MAX_WIDTH


def check_width(size: int) -> None:
    if size > _MAX_VIEW:
        raise ModelLoadError(f"a row of {size} values: expected at most {_MAX_VIEW}")


@dataclass(frozen=True, eq=False)
class Rows:
    """`index`: features of `node`, in the shape of the tensor. Its axis `rows_at` is that of the rows and has length 1;
    length k where the source has merged k values of each row into it, (rows, k, n) as (rows * k, n)."""

    node: Node
    index: Indices
    rows_at: int = 0

    def __post_init__(self) -> None:
        check_width(self.index.size)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.index.shape)

    @property
    def order(self) -> Indices:
        """The features in row-major order."""
        return self.index.reshape(-1)

    @property
    def is_whole(self) -> bool:
        """Every feature of the node, once, in its own order."""
        return self.index.size == self.node.width and bool((self.order == np.arange(self.node.width)).all())

    @property
    def is_permuted(self) -> bool:
        """Every feature of the node, once, in any order."""
        return self.index.size == self.node.width and bool(
            (np.bincount(self.order, minlength=self.node.width) == 1).all()
        )

    def of(self, node: Node) -> Rows:
        """The same features of another node of the same width."""
        return Rows(node, self.index, self.rows_at)

    def axis(self, axis: int) -> int:
        """From 0 on. ModelLoadError for one that is not there."""
        at = axis + self.index.ndim if axis < 0 else axis
        if not 0 <= at < self.index.ndim:
            raise ModelLoadError(f"there is no axis {axis} of {self.index.ndim}")
        return at


def whole(node: Node, shape: Sequence[int] | None = None, rows_at: int = 0) -> Rows:
    return Rows(
        node,
        np.arange(node.width, dtype=np.intp).reshape((1, node.width) if shape is None else shape),
        rows_at,
    )


def reshaped(rows: Rows, shape: Sequence[int], rows_at: int) -> Rows:
    """`shape` has the rows' axis too, at `rows_at`, with the length that `Rows.index` has there."""
    before, after = rows.shape[: rows.rows_at], tuple(shape[:rows_at])
    if math.prod(before) != math.prod(after):
        raise ModelLoadError(
            "it mixes rows with features: expected a view that keeps each row's values together"
        )
    if math.prod(before) != 1 and rows.shape[rows.rows_at] != shape[rows_at]:
        raise ModelLoadError(
            "it mixes rows with features: expected a view that keeps each row's values together"
        )
    return Rows(rows.node, rows.index.reshape(shape), rows_at)


def permuted(rows: Rows, order: Sequence[int]) -> Rows:
    axes = [rows.axis(axis) for axis in order]
    return Rows(rows.node, rows.index.transpose(axes), axes.index(rows.rows_at))


def inserted(rows: Rows, axis: int) -> Rows:
    """unsqueeze."""
    at = axis + rows.index.ndim + 1 if axis < 0 else axis
    return Rows(rows.node, np.expand_dims(rows.index, at), rows.rows_at + (at <= rows.rows_at))


def removed(rows: Rows, axes: Sequence[int]) -> Rows:
    """squeeze: those of the axes that have length 1 and are not the rows'."""
    gone = {rows.axis(axis) for axis in axes}
    gone = {axis for axis in gone if axis != rows.rows_at and rows.index.shape[axis] == 1}
    shape = [size for axis, size in enumerate(rows.shape) if axis not in gone]
    return Rows(
        rows.node, rows.index.reshape(shape), rows.rows_at - sum(axis < rows.rows_at for axis in gone)
    )


def expanded(rows: Rows, shape: Sequence[int], rows_at: int) -> Rows:
    """`shape`: as of `reshaped`. What is new is in front, or had length 1."""
    ahead = len(shape) - rows.index.ndim
    if rows.rows_at + ahead != rows_at or shape[rows_at] != rows.shape[rows.rows_at]:
        raise ModelLoadError(REPEATS_ROWS)
    index = rows.index.reshape((1,) * ahead + rows.shape)
    return Rows(rows.node, np.broadcast_to(index, tuple(shape)), rows_at)


def taken(rows: Rows, axis: int, positions: slice | int | Indices) -> Rows:
    """Features at some positions of an axis; an int removes the axis."""
    at = rows.axis(axis)
    if at == rows.rows_at:
        raise ModelLoadError(PICKS_ROWS)
    if isinstance(positions, np.ndarray):
        check_width(rows.index.size // max(1, rows.shape[at]) * positions.size)
    index = rows.index[(slice(None),) * at + (positions,)]
    if isinstance(positions, int):
        return Rows(rows.node, index, rows.rows_at - (at < rows.rows_at))
    if index.size == 0:
        raise ModelLoadError("nothing is left of the features")
    return Rows(rows.node, index, rows.rows_at)


def aligned(first: Rows, second: Rows) -> tuple[Rows, Rows]:
    """Both in the shape that they broadcast to."""
    ndim = max(first.index.ndim, second.index.ndim)
    pair = []
    for each in (first, second):
        ahead = ndim - each.index.ndim
        pair.append(Rows(each.node, each.index.reshape((1,) * ahead + each.shape), each.rows_at + ahead))
    a, b = pair
    if a.rows_at != b.rows_at or a.shape[a.rows_at] != b.shape[b.rows_at]:
        raise ModelLoadError("it combines the values of one row with those of others")
    shape = np.broadcast_shapes(a.shape, b.shape)
    return (
        Rows(a.node, np.broadcast_to(a.index, shape), a.rows_at),
        Rows(b.node, np.broadcast_to(b.index, shape), b.rows_at),
    )
