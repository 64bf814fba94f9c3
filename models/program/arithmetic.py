# SPDX-License-Identifier: Apache-2.0
"""How a step's numbers are computed in numpy: exactly in the dtype of the values, or as some kernel would. Knows
nothing of steps, which call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.formula import Formula
from fused_mlp.models.weights.quantization import Int8Matrix, ReducedMatrix, int8_product

Ids = NDArray[np.int32]


class Tensors(NamedTuple):
    """A step's tensors by the last part of their names. `get` returns them in the dtype that is computed in; `table`
    returns some rows of a large tensor, so that the whole is never widened; `reduced` returns a matrix as it is kept in
    fewer bits."""

    get: Callable[[str], Floats | None]
    table: Callable[[str, Ids], Floats]
    reduced: Callable[[str], ReducedMatrix | None]

    def need(self, name: str) -> Floats:
        found = self.get(name)
        assert found is not None, name
        return found


class Arithmetic:
    """Exact in the dtype of the values. Subclasses round as some kernel would, or add up in another order."""

    def stored(self, values: Floats) -> Floats:
        """A step's result after it was written to memory."""
        return values

    def product(self, x: Floats, weight: Floats, reduced: ReducedMatrix | None) -> Floats:
        """x: (rows, in), weight: (out, in), both of one dtype; `reduced` is the same matrix where it is kept in fewer
        bits."""
        result: Floats = x @ weight.T
        return result

    def function(self, formula: Formula, x: Floats) -> Floats:
        return formula(x)

    def normalized(self, kind: str, x: Floats, eps: Any) -> Floats:
        """A `Norm` before its weight and bias."""
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


def ids_of(values: Floats) -> Ids:
    """The ids in an array of floats: a record keeps each as the bits of a 32-bit integer. float64 holds every float32
    exactly, so a widened record has the same ids."""
    return np.ascontiguousarray(values, np.float32).view(np.int32)


def as_words(ids: NDArray[Any], dtype: np.dtype[Any] | type) -> Floats:
    """The reverse of `ids_of`."""
    return np.ascontiguousarray(ids, np.int32).view(np.float32).astype(dtype, copy=False)
