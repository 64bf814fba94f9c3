# SPDX-License-Identifier: Apache-2.0
"""Steps with a matrix: linear and gated."""

from collections.abc import Sequence
from typing import Literal

from pydantic import field_validator

from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.arithmetic import Arithmetic, Tensors
from fused_mlp.models.program.formula import Formula, parse
from fused_mlp.models.program.steps.base import Shared, Unary, Width, shortened


class Weighted(Shared):
    """A step with a matrix."""

    out_features: Width
    bias: bool = True

    def width(self, sources: tuple[int, ...]) -> int:
        return self.out_features

    def _product(self, half: str, x: Floats, tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        weight, bias = tensors.need(f"{half}weight"), tensors.get(f"{half}bias")
        product = arithmetic.product(x, weight, tensors.reduced(f"{half}weight"))
        return arithmetic.stored(product if bias is None else product + bias)

    def _shapes(self, half: str, in_features: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {f"{half}weight": (self.out_features, in_features)}
        if self.bias:
            shapes[f"{half}bias"] = (self.out_features,)
        return shapes


class Linear(Weighted):
    """input W^T + b. weight: (out_features, in), bias: (out_features,)."""

    op: Literal["linear"] = "linear"

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return self._shapes("", sources[0])

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return self._product("", sources[0], tensors, arithmetic)

    @property
    def flops_per_feature(self) -> int:
        return 0

    def describe(self) -> str:
        return str(self.out_features)

    def detail(self) -> str:
        return "" if self.bias else "no bias"


class WithFunction(Unary):
    function: str

    @field_validator("function")
    @classmethod
    def _canonical(cls, text: str) -> str:
        return parse(text).text

    @property
    def formula(self) -> Formula:
        return parse(self.function)

    @property
    def flops_per_feature(self) -> int:
        return len(self.formula.instructions)

    def describe(self) -> str:
        return shortened(self.function)

    def detail(self) -> str:
        return self.function


class Gated(Weighted, WithFunction):
    """function(input G^T + g) * (input W^T + b): GLU, GeGLU, SwiGLU, ReGLU; bilinear with the function `x`."""

    op: Literal["gated"] = "gated"

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {**self._shapes("", sources[0]), **self._shapes("gate_", sources[0])}

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        gate = arithmetic.function(self.formula, self._product("gate_", sources[0], tensors, arithmetic))
        return arithmetic.stored(gate) * self._product("", sources[0], tensors, arithmetic)

    @property
    def flops_per_feature(self) -> int:
        return 1 + len(self.formula.instructions)

    def describe(self) -> str:
        return f"{self.out_features} gated {shortened(self.function)}".removesuffix(" x")

    def detail(self) -> str:
        return self.function if self.bias else f"{self.function}, no bias"
