# SPDX-License-Identifier: Apache-2.0
"""Steps that read several values of one width, feature by feature: arithmetic, comparisons, a choice."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fused_mlp.models.program.activations import PRIMITIVES, Floats
from fused_mlp.models.program.arithmetic import Arithmetic, Tensors
from fused_mlp.models.program.steps.base import AnyStep, Name

Combination = Literal["add", "subtract", "multiply", "divide", "maximum", "minimum"]
Comparison = Literal["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]
_SYMBOLS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "maximum": "max", "minimum": "min", "less": "<",
    "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!=",
}  # fmt: skip


class _Pair(AnyStep):
    inputs: Annotated[tuple[Name, Name], Field(strict=False)]

    @property
    def sources(self) -> tuple[str, ...]:
        return self.inputs

    def width(self, sources: tuple[int, ...]) -> int:
        if sources[0] != sources[1]:
            raise ValueError(f"expected two values of the same width, got {sources[0]} and {sources[1]}")
        return sources[0]

    def describe(self) -> str:
        return _SYMBOLS[self.op]  # type: ignore[attr-defined]


class Combine(_Pair):
    """Two values of the same width, feature by feature."""

    op: Combination

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        result: Floats = PRIMITIVES[self.op](*sources)
        return result


class Compare(_Pair):
    """1 where the comparison of two values holds, else 0. As in IEEE 754, NaN equals nothing."""

    op: Comparison

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        result: Floats = getattr(np, self.op)(*sources).astype(sources[0].dtype)
        return result


class Where(AnyStep):
    """The second value where the first is not 0 (or is NaN), else the third."""

    op: Literal["where"] = "where"
    inputs: Annotated[tuple[Name, Name, Name], Field(strict=False)]

    @property
    def sources(self) -> tuple[str, ...]:
        return self.inputs

    def width(self, sources: tuple[int, ...]) -> int:
        if len(set(sources)) != 1:
            raise ValueError(f"expected three values of the same width, got {', '.join(map(str, sources))}")
        return sources[0]

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return np.where(sources[0] != 0, sources[1], sources[2])
