# SPDX-License-Identifier: Apache-2.0
"""Tensors of files as torch stores them: strided views of some bytes, of which several tensors may be made."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.weights.dtypes import Array, named_dtype

MAX_DIMENSIONS = 64  # as numpy and torch have it
# A tensor may repeat its stored values (stride 0) up to this size.
_MAX_REPEATED = 1 << 20


def strided_view(
    data: bytes, dtype_name: str, sizes: Sequence[int], strides: Sequence[int], offset: int, *, where: str
) -> Array:
    """A read-only view of the bytes; numbers are from 0. Every index is checked against their length first."""
    if len(sizes) > MAX_DIMENSIONS:
        raise ModelLoadError(f"{where}: expected at most {MAX_DIMENSIONS} dimensions, got {len(sizes)}")
    dtype = named_dtype(dtype_name)
    values = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
    count = math.prod(sizes)
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if count and (last >= values.size or count > max(values.size, _MAX_REPEATED)):
        raise ModelLoadError(f"{where} of shape {list(sizes)} does not fit its {len(data)} stored bytes")
    if not count:
        return np.empty(sizes, dtype)
    steps = [stride * dtype.itemsize for stride in strides]
    array: Array = np.lib.stride_tricks.as_strided(values[offset:], sizes, steps, writeable=False)
    return array.view(np.uint8) != 0 if dtype == np.bool_ else array
