# SPDX-License-Identifier: Apache-2.0
"""Embedding tables of saved versions, which may be larger than memory: mapped from their file, or read into huge pages.
A mapped table costs neither time nor memory until its rows are used, and processes share its pages. Versions of one
model that hold the same table share its memory. Nothing looks for NaN in it: a row that holds some makes the outputs
NaN of those requests that use it."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fused_mlp.models.weights.dtypes import Array, named_dtype

Mode = Literal["map", "load"]
# Smaller ones are read, copied and checked as every other tensor is.
MIN_BYTES = 16 << 20
_HUGE_PAGE = 2 << 20
_COMPARED_AT_ONCE = 4 << 20
_KNOWN_FILES = 10_000

_mode: Mode = "map"


class _Memory(mmap.mmap):
    identity = ""
    skipped = 0  # bytes before the table
    table_bytes = 0
    content: tuple[object, ...] = ()  # what has to be equal before memory is shared


_open: weakref.WeakSet[_Memory] = weakref.WeakSet()
_open_lock = threading.Lock()
# By file: the identity of the table that it shares, which outlives the memory.
_shared: dict[str, str] = {}


def set_mode(mode: Mode) -> None:
    """For all tables that this process opens from now on."""
    global _mode  # noqa: PLW0603
    _mode = mode


def open_table(file: FileIO, offset: int, dtype: str, shape: tuple[int, ...], digest: str = "") -> Array:
    """Read-only. `dtype` as numpy names it. `digest`, of the values, is what the file claims: it is believed among the
    versions of one model, whose owner can read all of them anyway."""
    kind = named_dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    there = os.fstat(file.fileno())
    if offset + size > there.st_size:
        raise OSError("the file ends before the tensor does")
    identity = f"{there.st_dev} {there.st_ino} {there.st_size} {there.st_mtime_ns} {offset} {size}"
    model = Path(os.path.realpath(str(file.name))).parent.parent
    content = (_mode, size, *((model, digest) if _mode == "map" else ()))
    memory = _find(file, offset, content, identity, named=bool(digest))
    if memory is None:
        memory = (_map if _mode == "map" else _load)(file, offset, size)
        memory.table_bytes, memory.content = size, content
        memory.identity = _shared.get(identity, identity)
        with _open_lock:
            _open.add(memory)
    else:
        if len(_shared) >= _KNOWN_FILES:
            _shared.pop(next(iter(_shared)))
        _shared[identity] = memory.identity
    flat = np.frombuffer(memory, np.uint8, size, memory.skipped)
    flat.flags.writeable = False
    return flat.view(kind).reshape(shape)


def _find(
    file: FileIO, offset: int, content: tuple[object, ...], identity: str, *, named: bool
) -> _Memory | None:
    """Memory that holds the same table already. What is loaded is compared with the file, byte by byte; a mapping is
    shared for the same digest, since comparing would read all of it."""
    with _open_lock:
        memories = list(_open)
    for memory in memories:
        if memory.content != content:
            continue
        if memory.identity == identity or (named if _mode == "map" else _equals(memory, file, offset)):
            return memory
    return None


def _equals(memory: _Memory, file: FileIO, offset: int) -> bool:
    end = memory.skipped + memory.table_bytes
    with memoryview(memory) as view:
        for start in range(memory.skipped, end, _COMPARED_AT_ONCE):
            part = view[start : min(start + _COMPARED_AT_ONCE, end)]
            if os.pread(file.fileno(), len(part), offset + start - memory.skipped) != part:
                return False
    return True


def _map(file: FileIO, offset: int, size: int) -> _Memory:
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    memory = _Memory(file.fileno(), size + offset - start, access=mmap.ACCESS_READ, offset=start)
    _advise(memory, "MADV_RANDOM")  # rows far apart: reading ahead would bring in pages that nothing uses
    memory.skipped = offset - start
    return memory


def _load(file: FileIO, offset: int, size: int) -> _Memory:
    # Private: memory that could be shared has no huge pages.
    memory = _Memory(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.skipped = -np.frombuffer(memory, np.uint8).ctypes.data % _HUGE_PAGE
    _advise(memory, "MADV_HUGEPAGE")  # before the first write: a lookup then seldom waits for a page table
    rest = memoryview(memory)[memory.skipped : memory.skipped + size]
    file.seek(offset)
    while rest:
        count = file.readinto(rest)
        if not count:
            raise OSError("the file ends before the tensor does")
        rest = rest[count:]
    return memory


def _advise(memory: _Memory, name: str) -> None:
    advice = getattr(mmap, name, None)  # not on every system
    if advice is not None:
        with suppress(OSError):
            memory.madvise(advice)


def _memory_of(array: Array) -> _Memory | None:
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, _Memory) else None


def identity_of(array: Array) -> str | None:
    """The file and place of a table that `open_table` made. They stand for its values, since a saved version never
    changes. None for all other arrays."""
    memory = _memory_of(array)
    return None if memory is None else memory.identity


def is_table(array: Array) -> bool:
    """Whether `open_table` made it."""
    return _memory_of(array) is not None


class OpenTables:
    """The tables among some arrays, without keeping them open."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._memories = weakref.WeakSet(each for each in map(_memory_of, arrays) if each is not None)

    def __bool__(self) -> bool:
        return bool(self._memories)

    @property
    def size(self) -> int:
        """Bytes. A table that kernels of a GPU have copied is not open any longer."""
        return sum(each.table_bytes for each in list(self._memories))

    @property
    def resident(self) -> int:
        """The bytes that are in physical memory."""
        return sum(map(_resident_bytes, list(self._memories)))


_SAMPLES, _SAMPLE_BYTES = 64, 1 << 20


def _resident_bytes(memory: _Memory) -> int:
    """Large tables are sampled: asking for each page of 20 GiB takes a tenth of a second."""
    start = np.frombuffer(memory, np.uint8).ctypes.data
    length = len(memory)
    step = max(_SAMPLE_BYTES, length // _SAMPLES // mmap.PAGESIZE * mmap.PAGESIZE)
    asked = resident = 0
    for at in range(0, length, step):
        pages = -(-min(_SAMPLE_BYTES, length - at) // mmap.PAGESIZE)
        states = np.zeros(pages, np.uint8)
        if _libc.mincore(
            ctypes.c_void_p(start + at),
            ctypes.c_size_t(pages * mmap.PAGESIZE),
            ctypes.c_void_p(states.ctypes.data),
        ):
            return 0
        asked += pages
        resident += int((states & 1).sum())
    return min(memory.table_bytes, round(memory.table_bytes * resident / asked))


_libc = ctypes.CDLL(None)
