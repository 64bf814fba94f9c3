# SPDX-License-Identifier: Apache-2.0
"""A program computed in numpy, step by step: what a model means. The reference of every check; nothing is fast here.
Knows nothing of kernels. Rounding, and the order of sums, are the caller's (`Arithmetic`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fused_mlp.models.activations import PRIMITIVES, Floats, log_softmax, softmax
from fused_mlp.models.dtypes import Array, widen
from fused_mlp.models.formula import Formula
from fused_mlp.models.quantization import Int8Matrix, ReducedMatrix, int8_product
from fused_mlp.models.spec import INPUT, Step
from fused_mlp.models.weights import Mlp


class Arithmetic:
    """Exact in the dtype of the values. Subclasses round as some kernel would, or add up in another order."""

    def stored(self, values: Floats) -> Floats:
        """What a step's result becomes when it is written to memory."""
        return values

    def product(self, x: Floats, weight: Floats, reduced: ReducedMatrix | None) -> Floats:
        """x: (rows, in), weight: (out, in), both of one dtype; `reduced` is the same matrix where it is kept in fewer
        bits."""
        result: Floats = x @ weight.T
        return result

    def function(self, formula: Formula, x: Floats) -> Floats:
        return formula(x)

    def normalized(self, kind: str, x: Floats, eps: Any) -> Floats:
        """Of `Norm`, before its weight and bias."""
        if kind == "l2":
            length = np.sqrt((x * x).sum(axis=1, keepdims=True))
            scaled: Floats = x / np.maximum(length, eps)
            return scaled
        centred = x - x.mean(axis=1, keepdims=True) if kind == "layer" else x
        result: Floats = centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + eps)
        return result


class Int8Products(Arithmetic):
    """As kernels multiply int8 matrices: rows are quantized too. In float32."""

    def product(self, x: Floats, weight: Floats, reduced: ReducedMatrix | None) -> Floats:
        if isinstance(reduced, Int8Matrix):
            return int8_product(x, reduced)
        return super().product(x, weight, reduced)


def evaluate(mlp: Mlp, x: Floats, arithmetic: Arithmetic | None = None) -> Floats:
    """x: (rows, in_features), float32 or float64; computes in that dtype. All outputs side by side, as kernels write
    them: (rows, out_features)."""
    values = evaluate_values(mlp, x, arithmetic)
    return np.concatenate([values[output.value] for output in mlp.spec.outputs], axis=1)


def evaluate_values(mlp: Mlp, x: Floats, arithmetic: Arithmetic | None = None) -> dict[str, Floats]:
    """Every value by its name, the input's included."""
    arithmetic = arithmetic or Arithmetic()
    values = {INPUT: x}
    with np.errstate(all="ignore"):
        for step in mlp.spec.steps:
            sources = [values[source] for source in step.sources]
            values[step.name] = arithmetic.stored(_step(mlp, step, sources, arithmetic))
    return values


def _step(mlp: Mlp, step: Step, sources: list[Floats], arithmetic: Arithmetic) -> Floats:  # noqa: PLR0911 - a table of steps
    x = sources[0]

    def tensor(name: str) -> Floats | None:
        found = mlp.tensor(step, name)
        return None if found is None else _as(found, x.dtype)

    def linear(half: str = "") -> Floats:
        weight, bias = tensor(f"{half}weight"), tensor(f"{half}bias")
        assert weight is not None
        product = arithmetic.product(x, weight, mlp.reduced.get(f"{step.prefix}.{half}weight"))
        return arithmetic.stored(product if bias is None else product + bias)

    match step.op:
        case "linear":
            return linear()
        case "gated":
            return arithmetic.stored(arithmetic.function(step.formula, linear("gate_"))) * linear()
        case "elementwise":
            return arithmetic.function(step.formula, x)
        case "norm":
            return _scaled(
                arithmetic.normalized(step.kind, x, x.dtype.type(step.eps)), tensor("weight"), tensor("bias")
            )
        case "affine":
            return _scaled(x, tensor("weight"), tensor("bias"))
        case "softmax":
            return softmax(x)
        case "log_softmax":
            return log_softmax(x)
        case "concat":
            return np.concatenate(sources, axis=1)
        case "slice":
            return x[:, step.start : step.stop]
    result: Floats = PRIMITIVES[step.op](*sources)
    return result


def _scaled(x: Floats, weight: Floats | None, bias: Floats | None) -> Floats:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def _as(array: Array, dtype: np.dtype[Any]) -> Floats:
    if array.dtype == np.float64:  # of an importer's check, before anything is rounded
        return array.astype(dtype, copy=False)
    return widen(array).astype(dtype, copy=False)
