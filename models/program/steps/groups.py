# SPDX-License-Identifier: Apache-2.0
"""Steps on a value that is several vectors of one length, side by side: pairwise products, and sums over them."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.arithmetic import Arithmetic, Tensors
from fused_mlp.models.program.steps.base import Unary, Width


class _Grouped(Unary):
    """`groups`: how many vectors the value is."""

    groups: Width

    def _length(self, width: int) -> int:
        if width % self.groups:
            raise ValueError(f"{width} features are not {self.groups} vectors of one length")
        return width // self.groups

    def _vectors(self, x: Floats) -> Floats:
        return x.reshape(len(x), self.groups, -1)


class Dot(_Grouped):
    """The dot product of each vector i with each j < i, in the order (1, 0), (2, 0), (2, 1), (3, 0), ...; `itself`:
    with j = i too, after the others of i."""

    op: Literal["dot"] = "dot"
    itself: bool = False

    def width(self, sources: tuple[int, ...]) -> int:
        self._length(sources[0])
        pairs = self.groups * (self.groups - 1) // 2 + (self.groups if self.itself else 0)
        if not pairs:
            raise ValueError("expected at least two vectors, got one")
        return pairs

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        vectors = self._vectors(sources[0])
        first, second = np.tril_indices(self.groups, 0 if self.itself else -1)
        products: Floats = np.einsum("rpd,rpd->rp", vectors[:, first], vectors[:, second])
        return products

    def describe(self) -> str:
        return f"dot of {self.groups}"

    def detail(self) -> str:
        return f"{self.groups} vectors{', each also with itself' if self.itself else ''}"


class Reduce(_Grouped):
    """The sum, mean or maximum of the vectors, feature by feature (`over` = "vectors"), or of the features of each
    vector (`over` = "features")."""

    op: Literal["reduce"] = "reduce"
    mode: Literal["sum", "mean", "max"] = "sum"
    over: Literal["vectors", "features"] = "vectors"

    def width(self, sources: tuple[int, ...]) -> int:
        length = self._length(sources[0])
        return length if self.over == "vectors" else self.groups

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        vectors = self._vectors(sources[0])
        result: Floats = getattr(vectors, self.mode)(axis=1 if self.over == "vectors" else 2)
        return result

    def describe(self) -> str:
        return f"{self.mode} of {self.groups}"

    def detail(self) -> str:
        return f"{self.mode} over {self.over}, {self.groups} vectors"


class Repeat(_Grouped):
    """Each of the vectors `times` times, one after the other: a, a, b, b. With one vector: a, a, a."""

    op: Literal["repeat"] = "repeat"
    times: Width

    def width(self, sources: tuple[int, ...]) -> int:
        self._length(sources[0])
        return sources[0] * self.times

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return np.repeat(self._vectors(sources[0]), self.times, axis=1).reshape(len(sources[0]), -1)

    @property
    def flops_per_feature(self) -> int:
        return 0

    def describe(self) -> str:
        return f"repeat {self.times}"

    def detail(self) -> str:
        return f"{self.groups} vectors, {self.times} times each"
