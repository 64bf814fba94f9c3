# SPDX-License-Identifier: Apache-2.0
"""Steps that move values: concat and slice."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.arithmetic import Arithmetic, Tensors
from fused_mlp.models.program.steps.base import LIST, AnyStep, Kind, Name, Unary


class Concat(AnyStep):
    """Values side by side: all of floats, or all of ids."""

    op: Literal["concat"] = "concat"
    inputs: Annotated[tuple[Name, ...], Field(min_length=2, max_length=1024), LIST]
    makes: ClassVar[Kind | None] = None

    @property
    def sources(self) -> tuple[str, ...]:
        return self.inputs

    def width(self, sources: tuple[int, ...]) -> int:
        return sum(sources)

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return np.concatenate(sources, axis=1)

    @property
    def flops_per_feature(self) -> int:
        return 0


class Slice(Unary):
    """The features [start, stop) of a value. A slice of the input is how a program reads one of several inputs."""

    op: Literal["slice"] = "slice"
    start: Annotated[int, Field(ge=0)]
    stop: Annotated[int, Field(ge=1)]
    makes: ClassVar[Kind | None] = None

    def width(self, sources: tuple[int, ...]) -> int:
        if not self.start < self.stop <= sources[0]:
            raise ValueError(f"[{self.start}, {self.stop}) is no part of {sources[0]} features")
        return self.stop - self.start

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return sources[0][:, self.start : self.stop]

    @property
    def flops_per_feature(self) -> int:
        return 0

    def describe(self) -> str:
        return f"[{self.start}:{self.stop}]"

    def detail(self) -> str:
        return f"{self.start}:{self.stop}"
