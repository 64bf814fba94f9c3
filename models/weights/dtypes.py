# SPDX-License-Identifier: Apache-2.0
"""The dtypes of weights in numpy. numpy has no bfloat16 (nor float8, which some checkpoints hold): those come from
ml_dtypes, imported when the first of them is met."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_LINE = 64


def named_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes  # noqa: PLC0415

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    return np.dtype(name)


def empty_at_line(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory that begins at a cache line: rows of a table then lie in as few lines as they can."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def widen(array: Array) -> NDArray[np.float32]:
    """As float32, C-contiguous; the same memory where it is that already."""
    if array.dtype.name == "bfloat16":  # the upper half of a float32; ten times as fast as ml_dtypes' cast
        return (array.view(np.uint16).astype(np.uint32, order="C") << 16).view(np.float32)
    return np.ascontiguousarray(array, np.float32)
