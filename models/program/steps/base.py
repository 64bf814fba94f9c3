# SPDX-License-Identifier: Apache-2.0
"""Every step of a program: a record of the values that it reads, and how it computes its own. Knows nothing of the
program around it, nor of kernels."""

# Annotations are no texts here: pydantic would evaluate each of them, at the start of every server.
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.arithmetic import Arithmetic, Tensors

MAX_WIDTH = 1 << 20
# Rows of a table: every id and every sum of an id and an offset fits 32 bits.
MAX_TABLE = (1 << 31) - (1 << 24)
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
# A step's name is that of the value it makes and the beginning of its tensors' names: `blocks.3.fc1`.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./:-]{0,199}$")]
# Everything else is strict; a list is as good as a tuple, in JSON and in Python. The first error of a list is enough.
LIST = Field(strict=False, fail_fast=True)
# A value holds floats, or ids: whole numbers in the bits of 32-bit integers.
Kind = Literal["float", "id"]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Tagged(Frozen):
    """A record that its `op` tells from others. The op has a default but is always written down."""

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"op": self.op, **handler(self)}  # type: ignore[attr-defined]


class AnyStep(Tagged):
    """One step. `name` is the value that it makes."""

    name: Name
    # Whether its value, and each of its sources, holds floats or ids. None: the step takes either, and makes the same.
    makes: ClassVar[Kind | None] = "float"
    reads: ClassVar[tuple[Kind, ...] | None] = None  # None: floats, for every source

    @property
    def sources(self) -> tuple[str, ...]:
        """The values that it reads."""
        raise NotImplementedError

    def width(self, sources: tuple[int, ...]) -> int:
        """The width of its value, given those of its sources; ValueError when they do not fit."""
        return sources[0]

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Its tensors: the last part of their names, and their shapes."""
        return {}

    @property
    def prefix(self) -> str:
        """The start of its tensors' names."""
        return self.name

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        """Computes its value. sources: (rows, width) each, all float32 or all float64."""
        raise NotImplementedError

    @property
    def flops_per_feature(self) -> int:
        """Operations for each feature of its value, beside matrix products, weights and biases: each multiplication,
        addition, comparison, root or exponential is one. Small beside the products."""
        return 1

    def describe(self) -> str:
        """In a word or two, for the summary line: `256`, `gelu`, `ln`, `+`."""
        return str(getattr(self, "op", ""))

    def detail(self) -> str:
        """Its parameters, short: what its name and its widths do not say."""
        return ""


class Unary(AnyStep):
    input: Name

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.input,)


class Shared(Unary):
    """A step with tensors. Steps that name the same `weights` share them (a module that is called twice)."""

    weights: Name | None = None

    @property
    def prefix(self) -> str:
        return self.weights or self.name


MAX_FUNCTION = 32


def shortened(function: str) -> str:
    """A formula, cut for a line of text."""
    return function if len(function) <= MAX_FUNCTION else f"{function[: MAX_FUNCTION - 3]}..."
