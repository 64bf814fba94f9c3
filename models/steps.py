# SPDX-License-Identifier: Apache-2.0
"""The steps of a program, as data: what each reads, the width of what it makes, and the shapes of its tensors. Knows
nothing of the program around it."""

# Annotations are no texts here: pydantic would evaluate each of them, at the start of every server.
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from fused_mlp.models.formula import Formula, parse

Combination = Literal["add", "subtract", "multiply", "divide", "maximum", "minimum"]

MAX_WIDTH = 1 << 20
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
# A step's name is that of the value it makes and the beginning of its tensors' names: `blocks.3.fc1`.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./:-]{0,199}$")]
# Everything else is strict; a list is as good as a tuple, in JSON and in Python. The first error of a list is enough.
LIST = Field(strict=False, fail_fast=True)
Eps = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class AnyStep(Frozen):
    """One step. `name` is the value that it makes."""

    name: Name
    tensors: ClassVar[tuple[str, ...]] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The values that it reads."""
        raise NotImplementedError

    def width(self, sources: tuple[int, ...]) -> int:
        """Of its value, given those of its sources; ValueError when they do not fit."""
        return sources[0]

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Its tensors: the last part of their names, and their shapes."""
        return {}

    @property
    def prefix(self) -> str:
        """What its tensors' names begin with."""
        return self.name

    # `op` has a default, so that steps are made without it, but is always written down.
    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"op": self.op, **handler(self)}  # type: ignore[attr-defined]


class Unary(AnyStep):
    input: Name

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.input,)


class Weighted(Unary):
    """A step with a matrix. Steps that name the same `weights` share one (a module that is called twice)."""

    out_features: Width
    bias: bool = True
    weights: Name | None = None

    @property
    def prefix(self) -> str:
        return self.weights or self.name

    def width(self, sources: tuple[int, ...]) -> int:
        return self.out_features


class Linear(Weighted):
    """input W^T + b. weight: (out_features, in), bias: (out_features,)."""

    op: Literal["linear"] = "linear"

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return _matrix("", self.out_features, sources[0], self.bias)


class _WithFunction(Unary):
    function: str

    @field_validator("function")
    @classmethod
    def _canonical(cls, text: str) -> str:
        return parse(text).text

    @property
    def formula(self) -> Formula:
        return parse(self.function)


class Gated(Weighted, _WithFunction):
    """function(input G^T + g) * (input W^T + b): GLU, GeGLU, SwiGLU, ReGLU; bilinear with the function `x`."""

    op: Literal["gated"] = "gated"

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {
            **_matrix("", self.out_features, sources[0], self.bias),
            **_matrix("gate_", self.out_features, sources[0], self.bias),
        }


class Elementwise(_WithFunction):
    """function(input), value by value."""

    op: Literal["elementwise"] = "elementwise"


class Norm(Unary):
    """layer: (x - mean) / sqrt(variance + eps); rms: x / sqrt(mean of squares + eps); l2: x / max(length, eps).
    Then * weight + bias, where it has them."""

    op: Literal["norm"] = "norm"
    kind: Literal["layer", "rms", "l2"]
    eps: Eps = 1e-5
    weight: bool = True
    bias: bool = True

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return _vectors(sources[0], self.weight, self.bias)


class Affine(Unary):
    """input * weight + bias, one of each per feature: a batch norm that no linear layer is beside."""

    op: Literal["affine"] = "affine"
    weight: bool = True
    bias: bool = True

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return _vectors(sources[0], self.weight, self.bias)


class Softmax(Unary):
    """softmax, or its logarithm, over all features of the row."""

    op: Literal["softmax", "log_softmax"] = "softmax"


class Combine(AnyStep):
    """Two values of the same width, feature by feature."""

    op: Combination
    inputs: Annotated[tuple[Name, Name], Field(strict=False)]

    @property
    def sources(self) -> tuple[str, ...]:
        return self.inputs

    def width(self, sources: tuple[int, ...]) -> int:
        if sources[0] != sources[1]:
            raise ValueError(f"expected two values of the same width, got {sources[0]} and {sources[1]}")
        return sources[0]


class Concat(AnyStep):
    """Values side by side."""

    op: Literal["concat"] = "concat"
    inputs: Annotated[tuple[Name, ...], Field(min_length=2, max_length=1024), LIST]

    @property
    def sources(self) -> tuple[str, ...]:
        return self.inputs

    def width(self, sources: tuple[int, ...]) -> int:
        return sum(sources)


class Slice(Unary):
    """The features [start, stop) of a value."""

    op: Literal["slice"] = "slice"
    start: Annotated[int, Field(ge=0)]
    stop: Annotated[int, Field(ge=1)]

    def width(self, sources: tuple[int, ...]) -> int:
        if not self.start < self.stop <= sources[0]:
            raise ValueError(f"[{self.start}, {self.stop}) is no part of {sources[0]} features")
        return self.stop - self.start


Step = Annotated[
    Linear | Gated | Elementwise | Norm | Affine | Softmax | Combine | Concat | Slice,
    Field(discriminator="op"),
]


def _matrix(half: str, out_features: int, in_features: int, bias: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{half}weight": (out_features, in_features)}
    if bias:
        shapes[f"{half}bias"] = (out_features,)
    return shapes


def _vectors(features: int, weight: bool, bias: bool) -> dict[str, tuple[int, ...]]:
    return {name: (features,) for name, there in (("weight", weight), ("bias", bias)) if there}
