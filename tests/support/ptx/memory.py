# SPDX-License-Identifier: Apache-2.0
"""Device memory as a kernel sees it: addresses into allocations with bounds. `Memory` is the global one; `Spaces`
are the shared and local memories of the blocks (or threads) that run side by side, each with offsets from 0."""

from __future__ import annotations

import ctypes
from bisect import bisect_right

import numpy as np

from tests.support.ptx.errors import BadAccess, Race

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
FIRST_ADDRESS = 0x7_0000_0000  # where no pointer of the host is
APART = 256  # allocations are aligned as cudaMalloc's, with a gap that nothing may touch


def rows(data: np.ndarray, size: int) -> np.ndarray:
    """data, (bytes,) uint8, as a matrix with one access of `size` bytes per row: words of 4 bytes, or one element."""
    word = UNSIGNED[min(size, 4)]
    return data[: len(data) // size * size].view(word).reshape(-1, max(size // 4, 1))


class Memory:
    """Ranges of addresses, each backed by a buffer that the host reads and writes too. `unsettled`: those that launches
    before this one may still use, by their addresses."""

    def __init__(self) -> None:
        self.unsettled: frozenset[int] = frozenset()
        self._bases: list[int] = []
        self._buffers: list[np.ndarray] = []
        self._next = FIRST_ADDRESS

    def add(self, array: np.ndarray, address: int | None = None) -> int:
        """Map a C-contiguous array; returns where it is."""
        data = array.reshape(-1).view(np.uint8)
        if address is None:
            address = self._next
            self._next += -(-len(data) // APART) * APART + APART
        if address % 16:
            raise BadAccess(f"expected an allocation aligned to 16 bytes, got {address:#x}")
        at = bisect_right(self._bases, address)
        self._bases.insert(at, address)
        self._buffers.insert(at, data)
        return address

    def add_host(self, address: int, size: int) -> int:
        """Map memory of this process, where it is."""
        raw = (ctypes.c_uint8 * size).from_address(address)
        return self.add(np.frombuffer(raw, np.uint8), address)

    def remove(self, address: int) -> None:
        at = self._bases.index(address)
        del self._bases[at], self._buffers[at]

    def locate(self, addresses: np.ndarray, size: int, what: str) -> list[tuple[int, np.ndarray | slice]]:
        """Which allocation each address is in: mostly one for all."""
        found = self._locate(addresses, size, what)
        if self.unsettled and any(self._bases[owner] in self.unsettled for owner, _ in found):
            raise Race(
                f"{what}: memory that an earlier launch may still use, and no griddepcontrol.wait before"
            )
        return found

    def _locate(self, addresses: np.ndarray, size: int, what: str) -> list[tuple[int, np.ndarray | slice]]:
        low, high = int(addresses.min()), int(addresses.max())
        if (addresses & np.uint64(size - 1)).any():
            wrong = int(addresses[(addresses & np.uint64(size - 1)) != 0][0])
            raise BadAccess(f"{what}: {wrong:#x} is not aligned to {size} bytes")
        first = bisect_right(self._bases, low) - 1
        if first >= 0 and high + size <= self._bases[first] + len(self._buffers[first]):
            return [(first, slice(None))]
        found: list[tuple[int, np.ndarray | slice]] = []
        owners = np.searchsorted(np.array(self._bases, np.uint64), addresses, "right") - 1
        for owner in np.unique(owners):
            lanes = np.flatnonzero(owners == owner)
            end = int(addresses[lanes].max()) + size
            if owner < 0 or end > self._bases[owner] + len(self._buffers[owner]):
                wrong = int(addresses[lanes].max() if owner >= 0 else addresses[lanes].min())
                raise BadAccess(f"{what}: {size} bytes at {wrong:#x} are outside of every allocation")
            found.append((int(owner), lanes))
        return found

    def load(self, addresses: np.ndarray, size: int, what: str) -> np.ndarray:
        """(lanes,) uint64 -> (lanes, words)."""
        found = self.locate(addresses, size, what)
        if len(found) == 1:
            return rows(self._buffers[found[0][0]], size)[self._index(found[0][0], addresses, size)]
        result = np.empty((len(addresses), max(size // 4, 1)), UNSIGNED[min(size, 4)])
        for owner, lanes in found:
            result[lanes] = rows(self._buffers[owner], size)[self._index(owner, addresses[lanes], size)]
        return result

    def store(self, addresses: np.ndarray, values: np.ndarray, size: int, what: str) -> None:
        """values: (lanes, words)."""
        for owner, lanes in self.locate(addresses, size, what):
            rows(self._buffers[owner], size)[self._index(owner, addresses[lanes], size)] = values[lanes]

    def _index(self, owner: int, addresses: np.ndarray, size: int) -> np.ndarray:
        return ((addresses - np.uint64(self._bases[owner])) // np.uint64(size)).astype(np.int64)


class Spaces:
    """`count` memories of `size` bytes, side by side. Bytes never written are NaN in every float format."""

    def __init__(self, count: int, size: int) -> None:
        self.size = -(-size // 16) * 16
        self.limit = size
        self.data = np.full(count * self.size, 0xFF, np.uint8)

    def index(self, owners: np.ndarray, addresses: np.ndarray, size: int, what: str) -> np.ndarray:
        """Rows of `rows(data, size)`. addresses: offsets in the space of each lane's owner."""
        if (addresses & (size - 1)).any():
            wrong = int(addresses[(addresses & (size - 1)) != 0][0])
            raise BadAccess(f"{what}: {wrong:#x} is not aligned to {size} bytes")
        if addresses.min() < 0 or addresses.max() + size > self.limit:
            wrong = int(addresses.max() if addresses.max() + size > self.limit else addresses.min())
            raise BadAccess(f"{what}: {size} bytes at {wrong:#x} are outside of {self.limit:#x} bytes")
        return (owners * self.size + addresses) // size

    def load(self, owners: np.ndarray, addresses: np.ndarray, size: int, what: str) -> np.ndarray:
        return rows(self.data, size)[self.index(owners, addresses, size, what)]

    def store(
        self, owners: np.ndarray, addresses: np.ndarray, values: np.ndarray, size: int, what: str
    ) -> None:
        rows(self.data, size)[self.index(owners, addresses, size, what)] = values
