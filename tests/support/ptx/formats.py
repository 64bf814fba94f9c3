# SPDX-License-Identifier: Apache-2.0
"""The bits of bfloat16, which numpy does not know."""

from __future__ import annotations

import numpy as np


def to_bf16(value: np.ndarray) -> np.ndarray:
    """float32 -> the bits of bfloat16, to nearest even."""
    bits = value.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), rounded.astype(np.uint16))


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
