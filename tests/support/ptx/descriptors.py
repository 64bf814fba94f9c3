# SPDX-License-Identifier: Apache-2.0
"""Matrices in shared memory that tensor cores read on their own: by descriptors, rows along K, swizzled."""

from __future__ import annotations

import numpy as np

from tests.support.ptx.errors import BadAccess, UnknownInstruction
from tests.support.ptx.machine import Machine
from tests.support.ptx.memory import rows
from tests.support.ptx.tensor_cores import numbers

EIGHT = 8  # rows: the height of a swizzled piece


def matrices(
    m: Machine,
    blocks: np.ndarray,
    words: np.ndarray,
    height: int,
    depth: int,
    name: str,
    what: str,
    widths: dict[int, int],
) -> tuple[np.ndarray, list[object]]:
    """(descriptors, height, depth) float64 of the descriptors `words` in the shared memories of `blocks`; and what
    `Races.unchanged` wants once the product is done. widths: bytes of a row, by the bits of the swizzle mode."""
    offsets = np.empty((len(words), height, depth * (4 if name == "tf32" else 2) // 4), np.int64)
    column = np.arange(offsets.shape[2]) * 4
    row = np.arange(height)
    for index, word in enumerate(np.asarray(words, np.uint64).tolist()):
        start, stride = (word & 0x3FFF) << 4, (word >> 32 & 0x3FFF) << 4
        width = widths.get(word >> 61)
        if width is None or word >> 49 & 7 or start % 16:
            raise UnknownInstruction(f"{what}: a descriptor of {word:#x}")
        at = (start + row // EIGHT * stride + row % EIGHT * width)[:, None] + column
        offsets[index] = at ^ ((at >> 7 & width // 16 - 1) << 4)
    if offsets.max() + 4 > m.shared.limit:
        raise BadAccess(
            f"{what}: {int(offsets.max()):#x} is outside of {m.shared.limit:#x} bytes of shared memory"
        )
    taken = [
        m.races.snapshot(int(block), each.ravel(), what) for block, each in zip(blocks, offsets, strict=True)
    ]
    found = rows(m.shared.data, 4)[(offsets + blocks[:, None, None] * m.shared.size) // 4][..., 0]
    return numbers(found, name), [each for each in taken if each is not None]
