# SPDX-License-Identifier: Apache-2.0
"""Steps that make a value of the same width: functions, norms, scales and softmax."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from fused_mlp.models.program.activations import Floats, log_softmax, softmax
from fused_mlp.models.program.arithmetic import Arithmetic, Tensors
from fused_mlp.models.program.steps.base import Unary
from fused_mlp.models.program.steps.products import WithFunction

Eps = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_NORMS = {"layer": ("ln", 6), "rms": ("rms", 3), "l2": ("l2", 3)}  # the word, and operations per feature


class Elementwise(WithFunction):
    """function(input), value by value."""

    op: Literal["elementwise"] = "elementwise"

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return arithmetic.function(self.formula, sources[0])


class _Scaled(Unary):
    weight: bool = True
    bias: bool = True

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {
            name: (sources[0],) for name, there in (("weight", self.weight), ("bias", self.bias)) if there
        }

    def _scaled(self, x: Floats, tensors: Tensors) -> Floats:
        weight, bias = tensors.get("weight"), tensors.get("bias")
        if weight is not None:
            x = x * weight
        return x if bias is None else x + bias


class Norm(_Scaled):
    """layer: (x - mean) / sqrt(variance + eps); rms: x / sqrt(mean of squares + eps); l2: x / max(length, eps).
    Then * weight + bias, where it has them."""

    op: Literal["norm"] = "norm"
    kind: Literal["layer", "rms", "l2"]
    eps: Eps = 1e-5

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        x = sources[0]
        return self._scaled(arithmetic.normalized(self.kind, x, x.dtype.type(self.eps)), tensors)

    @property
    def flops_per_feature(self) -> int:
        return _NORMS[self.kind][1]

    def describe(self) -> str:
        return _NORMS[self.kind][0]

    def detail(self) -> str:
        return f"{self.kind}, eps {self.eps:g}"


class Affine(_Scaled):
    """input * weight + bias, one of each per feature: a batch norm that no linear layer is beside."""

    op: Literal["affine"] = "affine"

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return self._scaled(sources[0], tensors)

    @property
    def flops_per_feature(self) -> int:
        return 0


class Softmax(Unary):
    """softmax, or its logarithm, over all features of the row."""

    op: Literal["softmax", "log_softmax"] = "softmax"

    def evaluate(self, sources: Sequence[Floats], tensors: Tensors, arithmetic: Arithmetic) -> Floats:
        return softmax(sources[0]) if self.op == "softmax" else log_softmax(sources[0])

    @property
    def flops_per_feature(self) -> int:
        return 4
