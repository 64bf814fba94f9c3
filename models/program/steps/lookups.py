# SPDX-License-Identifier: Apache-2.0
"""Steps that read or make ids: rows of tables, buckets, the place of the largest value. Ids reach a step checked: the
door and the steps that make them keep them within [0, rows of the table), or -1 for one that is absent from a bag."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.arithmetic import Arithmetic, Tensors, as_words, ids_of
from fused_mlp.models.program.steps.base import MAX_TABLE, AnyStep, Kind, Name, Shared, Unary, Width

Size = Annotated[int, Field(ge=1, le=MAX_TABLE)]
ABSENT = -1


class _Lookup(Shared):
    """weight: (size, features), the table. Steps that name the same `weights` share it."""

    size: Size
    features: Width
    reads: ClassVar[tuple[Kind, ...] | None] = ("id",)

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.size, self.features)}

    @property
    def flops_per_feature(self) -> int:
        return 0

    def describe(self) -> str:
        return f"{self.op} {self.size:,} x {self.features}"  # type: ignore[attr-defined]


class Embedding(_Lookup):
    """The table's row for each id, side by side: k ids make k * features."""

    op: Literal["embedding"] = "embedding"

    def width(self, sources: tuple[int, ...]) -> int:
        return sources[0] * self.features

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return tensors.table("weight", ids_of(sources[0])).reshape(len(sources[0]), -1)


class Bag(_Lookup):
    """The sum, mean or maximum of the table's rows for several ids, in their order. `padding`, and ids that are absent,
    do not count; a bag without ids is 0. `factors`: a value of one float per id, which multiplies its row in a sum."""

    op: Literal["bag"] = "bag"
    mode: Literal["sum", "mean", "max"] = "sum"
    padding: Annotated[int, Field(ge=0)] | None = None
    factors: Name | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.input,) if self.factors is None else (self.input, self.factors)

    def width(self, sources: tuple[int, ...]) -> int:
        if self.factors is not None and self.mode != "sum":
            raise ValueError(f"factors are for the mode sum, got {self.mode}")
        if self.factors is not None and sources[1] != sources[0]:
            raise ValueError(f"expected one factor per id, got {sources[1]} for {sources[0]}")
        return self.features

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        ids = ids_of(sources[0])
        counted = ids != ABSENT
        if self.padding is not None:
            counted &= ids != self.padding
        total = np.zeros((len(ids), self.features), sources[0].dtype)
        if self.mode == "max":
            total -= np.inf
        for column in range(ids.shape[1]):
            taken = tensors.table("weight", np.where(counted[:, column], ids[:, column], 0))
            if self.factors is not None:
                taken = taken * sources[1][:, column : column + 1]
            here = counted[:, column : column + 1]
            total = np.where(here, np.maximum(total, taken) if self.mode == "max" else total + taken, total)
        count = counted.sum(axis=1, keepdims=True)
        if self.mode == "mean":
            total = total / np.maximum(count, 1).astype(total.dtype)
        return np.where(count > 0, total, total.dtype.type(0))

    @property
    def flops_per_feature(self) -> int:
        return 1 if self.factors is None else 2

    def detail(self) -> str:
        padding = "" if self.padding is None else f", without {self.padding}"
        return f"{self.mode}{padding}{', with factors' if self.factors else ''}"


class Bucketize(Unary):
    """For each feature, how many boundaries are below it (`right`: or equal to it): an id from 0 to their number. NaN
    is beyond all of them. boundaries: (count,), ascending."""

    op: Literal["bucketize"] = "bucketize"
    count: Annotated[int, Field(ge=1, le=1 << 16)]
    right: bool = False
    makes: ClassVar[Kind | None] = "id"

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {"boundaries": (self.count,)}

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        side: Literal["left", "right"] = "right" if self.right else "left"
        found = np.searchsorted(tensors.need("boundaries"), sources[0], side=side)
        return as_words(found, sources[0].dtype)

    @property
    def flops_per_feature(self) -> int:
        return self.count.bit_length()

    def describe(self) -> str:
        return f"bucketize {self.count + 1}"


class Argmax(Unary):
    """Where the largest feature is, the first of several: an id. NaN counts as the largest."""

    op: Literal["argmax"] = "argmax"
    makes: ClassVar[Kind | None] = "id"

    def width(self, sources: tuple[int, ...]) -> int:
        return 1

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return as_words(sources[0].argmax(axis=1)[:, None], sources[0].dtype)


class Number(Unary):
    """Ids as floats."""

    op: Literal["number"] = "number"
    reads: ClassVar[tuple[Kind, ...] | None] = ("id",)

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return ids_of(sources[0]).astype(sources[0].dtype)


class Pick(AnyStep):
    """The part of a value that an id chooses: of `groups` equal parts, the one with that number. inputs: value, id."""

    op: Literal["pick"] = "pick"
    inputs: Annotated[tuple[Name, Name], Field(strict=False)]
    groups: Width
    reads: ClassVar[tuple[Kind, ...] | None] = ("float", "id")

    @property
    def sources(self) -> tuple[str, ...]:
        return self.inputs

    def width(self, sources: tuple[int, ...]) -> int:
        if sources[0] % self.groups:
            raise ValueError(f"{sources[0]} features are not {self.groups} equal parts")
        if sources[1] != 1:
            raise ValueError(f"expected one id, got {sources[1]}")
        return sources[0] // self.groups

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        parts = sources[0].reshape(len(sources[0]), self.groups, -1)
        chosen: Floats = parts[np.arange(len(parts)), ids_of(sources[1])[:, 0]]
        return chosen
