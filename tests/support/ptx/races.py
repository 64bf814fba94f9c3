# SPDX-License-Identifier: Apache-2.0
"""Finds missing barriers: two warps of a block that touch the same shared bytes between two barriers, one of them to
write. Whatever the order in which warps run, such a pair is found; so they may run in lockstep, which is fast.
A few blocks are watched: all run the same code."""

from __future__ import annotations

import numpy as np

from tests.support.ptx.errors import Race

GRANULE = 2  # bytes: the smallest element that our kernels keep in shared memory
WARPS = 64  # codes per interval between barriers: 1 + warp, and the last one for several
SEVERAL = WARPS - 1


class Races:
    """Per watched granule, who wrote and who read it last: interval * WARPS + 1 + warp."""

    def __init__(self, threads: int, lanes: int, watched: np.ndarray, size: int) -> None:
        """watched: the lanes to look at, whole blocks of `threads`."""
        self._lanes = watched
        blocks = len(watched) // threads
        self._block = np.repeat(np.arange(blocks), threads)
        self._warp = np.tile(np.arange(threads) // 32, blocks)
        self._size = -(-size // 16) * 16 // GRANULE
        self._written = np.zeros(blocks * self._size, np.int64)
        self._read = np.zeros(blocks * self._size, np.int64)
        self._unfenced = np.zeros(blocks * self._size, bool)
        self._interval = np.ones(blocks, np.int64)
        self._threads = threads
        self._stored: dict[int, int] = {}  # of global memory
        self._watched = np.isin(np.arange(lanes), watched)

    def barrier(self, blocks: np.ndarray | None) -> None:
        """A new interval. blocks: (all blocks,) bool; None for all."""
        if blocks is None:
            self._interval += 1
        else:
            self._interval += blocks[self._lanes[:: self._threads] // self._threads]

    def fence(self) -> None:
        """What was written is visible to the tensor cores' own path to shared memory."""
        self._unfenced[:] = False

    def watches(self, active: np.ndarray | None) -> np.ndarray:
        """Positions of the watched ones among the active lanes."""
        return self._lanes if active is None else np.flatnonzero(self._watched[active])

    def read(self, active: np.ndarray | None, addresses: np.ndarray, size: int, what: str) -> None:
        """addresses: (all lanes,) or (1,) offsets in shared memory."""
        index, base, mine = self._granules(active, addresses, size)
        self._check(self._written[index], base, mine, index, f"{what}: another warp wrote")
        before = self._read[index]
        mine = np.where((before < base) | (before == mine), mine, base + SEVERAL)
        self._read[index] = mine
        lost = self._read[index] != mine
        self._read[index[lost]] = base[lost] + SEVERAL

    def write(
        self,
        active: np.ndarray | None,
        addresses: np.ndarray,
        size: int,
        what: str,
        changed: np.ndarray,
        lost: np.ndarray,
    ) -> None:
        """Of the watched lanes that write, `changed` found other bytes there before, `lost` find other ones now."""
        index, base, mine = self._granules(active, addresses, size)
        changed, lost = (np.repeat(each, len(index) // max(len(each), 1)) for each in (changed, lost))
        self._check(self._written[index], base, mine, index, f"{what}: another warp wrote", changed)
        self._check(self._read[index], base, mine, index, f"{what}: another warp read", changed)
        self._written[index] = mine
        self._unfenced[index] = True
        self._check(self._written[index], base, mine, index, f"{what}: another warp writes", lost)

    def _granules(
        self, active: np.ndarray | None, addresses: np.ndarray, size: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the watched lanes touch: the granules, the first code of the interval, the warp's own code."""
        lanes, block, warp = self._lanes, self._block, self._warp
        if active is not None:
            mine = active[lanes]
            lanes, block, warp = lanes[mine], block[mine], warp[mine]
        at = addresses[lanes] if len(addresses) > 1 else np.broadcast_to(addresses, len(lanes))
        first = block * self._size + at.astype(np.int64) // GRANULE  # far apart, in global memory
        count = max(size // GRANULE, 1)
        base = np.repeat(self._interval[block] * WARPS, count)
        return (first[:, None] + np.arange(count)).ravel(), base, base + np.repeat(warp + 1, count)

    def store(self, active: np.ndarray | None, addresses: np.ndarray, size: int) -> None:
        """To global memory: a warp that reads it before the next barrier may be too early. (Blocks never read what
        others write.)"""
        words, _, mine = self._granules(active, addresses, size)
        self._stored.update(zip(words.tolist(), mine.tolist(), strict=True))

    def load(self, active: np.ndarray | None, addresses: np.ndarray, size: int, what: str) -> None:
        if not self._stored:
            return
        for word, base, mine in zip(
            *(each.tolist() for each in self._granules(active, addresses, size)), strict=True
        ):
            if base <= self._stored.get(word, 0) != mine:
                raise Race(f"{what}: another warp wrote this global memory, and no barrier is between")

    def snapshot(self, block: int, addresses: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Bytes that the tensor cores read on their own, from now until `unchanged`: refused if any was written
        without a fence or, by whichever warp, since the last barrier."""
        position = np.flatnonzero(self._lanes[:: self._threads] // self._threads == block)
        if not len(position):
            return None
        index = (position[0] * self._size + addresses[:, None] // GRANULE + np.arange(2)).ravel()
        if self._unfenced[index].any():
            raise Race(f"{what}: reads shared memory that was written with no fence.proxy.async since")
        base = np.full(len(index), self._interval[position[0]] * WARPS)
        self._check(self._written[index], base, base, index, f"{what}: a warp wrote")
        self._read[index] = base + SEVERAL
        return index, self._written[index].copy()

    def unchanged(self, taken: tuple[np.ndarray, np.ndarray] | None, what: str) -> None:
        if taken is not None and (self._written[taken[0]] != taken[1]).any():
            raise Race(f"{what}: shared memory was overwritten while the tensor cores read it")

    def _check(
        self,
        found: np.ndarray,
        base: np.ndarray,
        mine: np.ndarray,
        index: np.ndarray,
        what: str,
        only: np.ndarray | None = None,
    ) -> None:
        wrong = (found >= base) & (found != mine)
        if only is not None:
            wrong &= only
        if wrong.any():
            at = int(index[wrong][0]) % self._size * GRANULE
            raise Race(f"{what} the bytes at {at:#x} of shared memory, and no barrier is between")
