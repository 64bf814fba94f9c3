# SPDX-License-Identifier: Apache-2.0
"""The state of the blocks that run side by side: registers, shared and local memory, copies under way. A register is an
array with one element per thread of all blocks, or a single one if all threads have the same: numpy then broadcasts,
and what is uniform costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from tests.support.ptx.errors import UnknownInstruction
from tests.support.ptx.memory import Memory, Spaces, rows
from tests.support.ptx.parsing import Instruction, Kernel
from tests.support.ptx.races import Races

WARP = 32
POISON = {1: np.zeros(1, bool), 8: np.full(1, 0xFF, np.uint8), 16: np.full(1, 0xFFFF, np.uint16)}
POISON |= {32: np.full(1, 0xFFFFFFFF, np.uint32), 64: np.full(1, 0xFFFFFFFFFFFFFFFF, np.uint64)}

Step = Callable[["Machine"], None]


class OfBlocks(Protocol):
    def __init__(self, blocks: int) -> None: ...


Unit = TypeVar("Unit", bound=OfBlocks)


@dataclass(frozen=True)
class Copy:
    """A cp.async under way: data for rows of `size` bytes of the shared memory."""

    active: np.ndarray | None
    addresses: np.ndarray
    index: np.ndarray
    size: int
    data: np.ndarray
    what: str


class Machine:
    def __init__(
        self,
        kernel: Kernel,
        memory: Memory,
        shared: int,
        local: int,
        names: dict[str, int],
        parameters: np.ndarray,
        blocks: np.ndarray,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
    ) -> None:
        """blocks: the numbers of those that run; names: where variables are."""
        threads = block[0] * block[1] * block[2]
        self.kernel, self.memory, self.parameters, self.names = kernel, memory, parameters, names
        self.threads, self.lanes, self.warps = threads, threads * len(blocks), threads * len(blocks) // WARP
        self.block_of_lane = np.repeat(np.arange(len(blocks)), threads)
        self.registers = [POISON[bits] for bits in kernel.registers]
        self.active: np.ndarray | None = None  # the threads that run, if not all
        self.alive = np.ones(self.lanes, bool)  # those that have not ended
        self.shared = Spaces(len(blocks), shared)
        self.local = Spaces(self.lanes, local)
        watched = np.isin(self.block_of_lane, [0, len(blocks) - 1])
        self.races = Races(threads, self.lanes, np.flatnonzero(watched), shared)
        self.copies: list[Copy] = []  # issued, not committed
        self.copy_groups: list[list[Copy]] = []
        self.carry: np.ndarray = np.zeros(1, np.uint64)
        self.arriving: dict[int, np.ndarray] = {}  # registers that read as NaN until their load is waited for
        self._units: dict[type, object] = {}  # what tensor cores and the like keep
        thread = np.tile(np.arange(threads, dtype=np.uint32), len(blocks))
        number = np.repeat(blocks.astype(np.uint32), threads)
        self.special = {"%laneid": thread % WARP, "%warpid": thread // WARP}
        for axis, size, width in zip("xyz", block, grid, strict=True):
            self.special |= {f"%tid.{axis}": thread % size, f"%ctaid.{axis}": number % width}
            self.special |= {f"%ntid.{axis}": np.full(1, size, np.uint32)}
            self.special |= {f"%nctaid.{axis}": np.full(1, width, np.uint32)}
            thread, number = thread // size, number // width
        self.special = {name: np.asarray(each, np.uint32) for name, each in self.special.items()}

    def put(self, register: int, value: np.ndarray) -> None:
        if register < 0:  # `_`: not wanted
            return
        if self.active is not None:
            value = np.where(self.active, value, self.registers[register].view(value.dtype))
        self.registers[register] = value

    def unit(self, kind: type[Unit]) -> Unit:
        """The one of that kind, made of the number of blocks when it is first needed."""
        if kind not in self._units:
            self._units[kind] = kind(self.lanes // self.threads)
        found = self._units[kind]
        assert isinstance(found, kind)
        return found

    def expect_all(self, what: str) -> None:
        """There is one state for all threads."""
        if self.active is not None:
            raise UnknownInstruction(f"{what}: by a part of the threads")

    def full(self, value: np.ndarray) -> np.ndarray:
        """One element per lane."""
        return value if len(value) == self.lanes else np.broadcast_to(value, self.lanes)

    def by_warp(self, value: np.ndarray) -> np.ndarray:
        """(warps, 32)."""
        return self.full(value).reshape(self.warps, WARP)

    def load_shared(self, addresses: np.ndarray, size: int, what: str) -> np.ndarray:
        """(lanes, words); lanes that do not run get NaN."""
        self.races.read(self.active, addresses, size, what)
        if self.active is None:
            return self.shared.load(self.block_of_lane, self.full(addresses), size, what)
        return self._spread(
            lambda at: self.shared.load(self.block_of_lane[at], self.full(addresses)[at], size, what), size
        )

    def store_shared(self, addresses: np.ndarray, values: np.ndarray, size: int, what: str) -> None:
        at = slice(None) if self.active is None else np.flatnonzero(self.active)
        index = self.shared.index(self.block_of_lane[at], self.full(addresses)[at], size, what)
        self._write(self.active, addresses, rows(self.shared.data, size), index, values[at], what)

    def load_global(self, addresses: np.ndarray, size: int, what: str) -> np.ndarray:
        """(lanes or 1, words)."""
        self.races.load(self.active, addresses, size, what)
        if self.active is None:
            return self.memory.load(addresses, size, what)
        return self._spread(lambda at: self.memory.load(self.full(addresses)[at], size, what), size)

    def store_global(self, addresses: np.ndarray, values: np.ndarray, size: int, what: str) -> None:
        self.races.store(self.active, addresses, size)
        at = slice(None) if self.active is None else np.flatnonzero(self.active)
        self.memory.store(self.full(addresses)[at], values[at], size, what)

    def _spread(self, load: Callable[[np.ndarray], np.ndarray], size: int) -> np.ndarray:
        found = np.full(
            (self.lanes, max(size // 4, 1)), 0xFFFFFFFF >> max(32 - 8 * size, 0), f"u{min(size, 4)}"
        )
        at = np.flatnonzero(self.active)
        if len(at):
            found[at] = load(at)
        return found

    def begin_copy(self, addresses: np.ndarray, data: np.ndarray, size: int, what: str) -> None:
        """Until it is waited for, its target reads as NaN."""
        addresses = self.full(addresses)
        at = slice(None) if self.active is None else np.flatnonzero(self.active)
        index = self.shared.index(self.block_of_lane[at], addresses[at], size, what)
        memory = rows(self.shared.data, size)
        self._write(self.active, addresses, memory, index, np.full_like(data[at], 0xFFFFFFFF), what)
        self.copies.append(Copy(self.active, addresses, index, size, data[at], what))

    def finish_copies(self, keep: int) -> None:
        while len(self.copy_groups) > keep:
            for copy in self.copy_groups.pop(0):
                memory = rows(self.shared.data, copy.size)
                self._write(copy.active, copy.addresses, memory, copy.index, copy.data, copy.what)

    def _write(
        self,
        active: np.ndarray | None,
        addresses: np.ndarray,
        memory: np.ndarray,
        index: np.ndarray,
        values: np.ndarray,
        what: str,
    ) -> None:
        """Warps that write the same bytes to the same place do no harm: Triton has them do so."""
        watched = self.races.watches(active)
        changed = (memory[index[watched]] != values[watched]).any(1)
        memory[index] = values
        lost = (memory[index[watched]] != values[watched]).any(1)
        size = memory.shape[1] * memory.itemsize
        self.races.write(active, addresses, size, what, changed, lost)


def where(instruction: Instruction) -> str:
    return f"line {instruction.line}: {instruction.text}"
