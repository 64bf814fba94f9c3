# SPDX-License-Identifier: Apache-2.0
"""Freed memory goes back to the system: after growth, soon if the server is idle, seldom if it is busy."""

from __future__ import annotations

import ctypes

import pytest

from fused_mlp.service.memory import BUSY_EVERY_S, MIN_BYTES, Trimmer, resident_bytes

MIB = 1 << 20


class Rig:
    def __init__(self) -> None:
        self.resident, self.allocated, self.utilization, self.now, self.trims = 300 * MIB, 0, 0.0, 0.0, 0
        self.trimmer = Trimmer(
            lambda: self.utilization,
            lambda: self.resident,
            lambda: self.allocated,
            self._trim,
            clock=lambda: self.now,
        )

    def _trim(self) -> None:
        self.trims += 1
        self.resident = 310 * MIB

    def look(self, resident: int) -> int:
        """How often memory was given back up to now."""
        self.resident = resident
        self.trimmer.look()
        return self.trims


def test_memory_is_given_back_once_after_growth() -> None:
    rig = Rig()
    assert rig.look(300 * MIB + MIN_BYTES - 1) == 0
    assert rig.look(700 * MIB) == 1
    assert rig.look(310 * MIB) == 1
    assert rig.look(310 * MIB + MIN_BYTES) == 2


def test_memory_that_is_in_use_is_not_tried_over_and_over() -> None:
    rig = Rig()
    rig.look(700 * MIB)
    rig.resident = 310 * MIB
    assert [rig.look(310 * MIB + MIB * i) for i in range(10)] == [1] * 10


def test_memory_that_was_in_use_is_given_back_once_it_is_freed() -> None:
    rig = Rig()
    rig.allocated = 400 * MIB
    assert rig.look(700 * MIB) == 1
    rig.allocated -= MIN_BYTES - 1
    assert rig.look(310 * MIB) == 1
    rig.allocated -= 1
    assert rig.look(310 * MIB) == 2
    assert rig.look(310 * MIB) == 2


def test_a_busy_server_gives_memory_back_seldom() -> None:
    rig = Rig()
    rig.utilization = 0.9
    assert rig.look(700 * MIB) == 0
    rig.now = BUSY_EVERY_S
    assert rig.look(700 * MIB) == 1
    assert rig.look(700 * MIB) == 1
    rig.utilization = 0.1
    assert rig.look(700 * MIB) == 2


class Blocks:
    """100 MiB of small blocks. While the last one stays, free() alone gives nothing back."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        if not hasattr(self._libc, "malloc_trim"):
            pytest.skip("needs glibc")
        self._libc.malloc_trim(0)  # what earlier tests have freed would hold the blocks without growth
        self._libc.malloc.restype = ctypes.c_void_p
        self._blocks = [self._libc.malloc(4000) for _ in range(100 * MIB // 4000)]
        for block in self._blocks:
            ctypes.memset(block, 1, 4000)

    def free(self, keep: int) -> None:
        for block in self._blocks[: len(self._blocks) - keep]:
            self._libc.free(ctypes.c_void_p(block))
        del self._blocks[: len(self._blocks) - keep]


@pytest.mark.parametrize("while_in_use", [False, True])
def test_what_the_allocator_keeps_goes_back_to_the_system(while_in_use: bool) -> None:
    trimmer, blocks = Trimmer(lambda: 0.0), Blocks()
    before = resident_bytes() - 100 * MIB
    if while_in_use:
        trimmer.look()
    blocks.free(keep=1)
    assert resident_bytes() - before > 90 * MIB
    trimmer.look()
    assert resident_bytes() - before < 20 * MIB
    blocks.free(keep=0)
