"""Between memory and registers, and between the threads of a warp: ld, st, cp.async, ldmatrix, stmatrix, shfl."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.ptx.errors import UnknownInstruction
from tests.support.ptx.machine import WARP, Machine, Step, where
from tests.support.ptx.operands import TYPES, addressing, destination, reading, registers, type_of
from tests.support.ptx.parsing import Address, Instruction, Name, Vector

SPACES = ("global", "shared", "local", "param")


def space_of(instruction: Instruction) -> str:
    found = [part.partition("::")[0] for part in instruction.parts if part.partition("::")[0] in SPACES]
    if not found:
        raise UnknownInstruction(f"{where(instruction)}: generic addresses")
    return found[0]


def _width(instruction: Instruction) -> tuple[type, int]:
    count = next((int(part[1:]) for part in instruction.parts if part in ("v2", "v4", "v8")), 1)
    return type_of(instruction, instruction.parts[-1]), count


def _load(instruction: Instruction) -> Step:
    space, (kind, count) = space_of(instruction), _width(instruction)
    if space == "param":
        return _load_parameter(instruction, kind)
    targets = registers(instruction, instruction.operands[0])
    wanted = [each.bits for each in getattr(instruction.operands[0], "parts", instruction.operands[:1])]
    element = np.dtype(kind).itemsize
    size = element * count
    address = addressing(instruction, instruction.operands[1], np.uint64 if space == "global" else np.int64)
    what = where(instruction)

    def step(m: Machine) -> None:
        at = address(m)
        if space == "global":
            found = m.load_global(at, size, what)
        elif space == "shared":
            found = m.load_shared(at, size, what)
        else:
            found = m.local.load(np.arange(m.lanes), m.full(at), size, what)
        values = np.ascontiguousarray(np.ascontiguousarray(found).view(kind).T)
        for register, value, bits in zip(targets, values, wanted, strict=True):
            m.put(register, value if bits == 8 * element else value.astype(TYPES[f"{'s' if value.dtype.kind == 'i' else 'u'}{bits}"]))

    return step


def _load_parameter(instruction: Instruction, kind: type) -> Step:
    operand = instruction.operands[1]
    assert isinstance(operand, Address)
    if not isinstance(operand.base, Name):
        raise UnknownInstruction(where(instruction))
    name, offset, target = operand.base.text, operand.offset, destination(instruction)
    size = np.dtype(kind).itemsize
    bits = instruction.operands[0].bits  # type: ignore[union-attr]
    wide = TYPES[f"{'s' if np.dtype(kind).kind == 'i' else 'u'}{bits}"]

    def step(m: Machine) -> None:
        at = m.kernel.parameters[name][0] + offset
        value = m.parameters[at : at + size].view(kind)
        m.put(target, value.astype(wide) if bits != 8 * size else value)

    return step


def _store(instruction: Instruction) -> Step:
    space, (kind, count) = space_of(instruction), _width(instruction)
    source = instruction.operands[1]
    unsigned = TYPES[f"u{8 * np.dtype(kind).itemsize}"]
    parts = source.parts if isinstance(source, Vector) else (source,)
    reads = [reading(instruction, part, unsigned) for part in parts]
    size = np.dtype(kind).itemsize * count
    word = TYPES[f"u{8 * min(size, 4)}"]
    address = addressing(instruction, instruction.operands[0], np.uint64 if space == "global" else np.int64)
    what = where(instruction)

    def step(m: Machine) -> None:
        values = np.empty((m.lanes, count), unsigned)
        for index, read in enumerate(reads):
            values[:, index] = read(m)
        data = values.view(word)
        at = address(m)
        if space == "global":
            m.store_global(at, data, size, what)
        elif space == "shared":
            m.store_shared(at, data, size, what)
        else:
            lanes = np.arange(m.lanes) if m.active is None else np.flatnonzero(m.active)
            m.local.store(lanes, m.full(at)[lanes], data[lanes], size, what)

    return step


def _copy(instruction: Instruction) -> Step:
    """cp.async: a copy that lands when its group is waited for."""
    parts, what = instruction.parts, where(instruction)
    if parts[2] in ("commit_group", "wait_group", "wait_all"):
        keep = instruction.operands[0].value if instruction.operands else 0  # type: ignore[union-attr]
        return lambda m: _commit(m, what) if parts[2] == "commit_group" else _wait(m, keep, parts[2] == "wait_all", what)
    if parts[2] not in ("ca", "cg") or "mbarrier" in parts or "bulk" in parts:
        raise UnknownInstruction(what)
    target = addressing(instruction, instruction.operands[0], np.int64)
    source = addressing(instruction, instruction.operands[1], np.uint64)
    size = instruction.operands[2].value  # type: ignore[union-attr]
    count = reading(instruction, instruction.operands[3], np.uint32) if len(instruction.operands) > 3 else None

    def step(m: Machine) -> None:
        data = np.zeros((m.lanes, size // 4), np.uint32)
        taken = m.active
        if count is not None:  # bytes beyond the source's are zeros
            wanted = m.full(count(m))
            if ((wanted != 0) & (wanted != size)).any():
                raise UnknownInstruction(f"{what}: a part of {size} bytes")
            taken = wanted != 0 if taken is None else taken & (wanted != 0)
        lanes = slice(None) if taken is None else np.flatnonzero(taken)
        if taken is None or len(lanes):
            data[lanes] = m.memory.load(m.full(source(m))[lanes], size, what)
        m.begin_copy(target(m), data, size, what)

    return step


def _commit(m: Machine, what: str) -> None:
    if m.active is not None:
        raise UnknownInstruction(f"{what}: by a part of the threads")
    m.copy_groups.append(m.copies)
    m.copies = []


def _wait(m: Machine, keep: int, everything: bool, what: str) -> None:
    if everything:
        _commit(m, what)
    if m.active is not None:
        raise UnknownInstruction(f"{what}: by a part of the threads")
    m.finish_copies(keep)


def _matrices(instruction: Instruction) -> int:
    count = {"x1": 1, "x2": 2, "x4": 4}.get(instruction.parts[4], 0)
    if instruction.parts[3] != "m8n8" or instruction.parts[-1] != "b16" or not count:
        raise UnknownInstruction(where(instruction))
    return count


def _load_matrix(instruction: Instruction) -> Step:
    """Lane 8 i + r gives the address of row r of matrix i; each lane gets two elements of a row (or, transposed, of a
    column) of each matrix."""
    count, transposed = _matrices(instruction), "trans" in instruction.parts
    targets = registers(instruction, instruction.operands[0])
    address, what = addressing(instruction, instruction.operands[1], np.int64), where(instruction)
    lane = np.arange(WARP)

    def step(m: Machine) -> None:
        found = _rows_of(m, address(m), 8 * count, what)
        for index, target in enumerate(targets):
            matrix = found[:, 8 * index : 8 * index + 8]
            if transposed:
                halves = matrix.view(np.uint16).transpose(0, 2, 1)
                matrix = np.ascontiguousarray(halves).view(np.uint32)
            m.put(target, matrix[:, lane // 4, lane % 4].reshape(-1))

    return step


def _rows_of(m: Machine, address: np.ndarray, count: int, what: str) -> np.ndarray:
    """(warps, 32, 4 words): 16 bytes from the addresses of the first `count` lanes of each warp."""
    outer = m.active
    m.active = _first_lanes(m, count, what)
    try:
        found = m.load_shared(address, 16, what)
    finally:
        m.active = outer
    return np.ascontiguousarray(found).reshape(m.warps, WARP, 4)


def _first_lanes(m: Machine, count: int, what: str) -> np.ndarray | None:
    if m.active is not None:
        whole = m.by_warp(m.active)
        if (whole.any(1) != whole.all(1)).any():
            raise UnknownInstruction(f"{what}: by a part of a warp")
    if count == WARP:
        return m.active
    first = np.tile(np.arange(WARP) < count, m.warps)
    return first if m.active is None else first & m.active


def _store_matrix(instruction: Instruction) -> Step:
    count, transposed = _matrices(instruction), "trans" in instruction.parts
    address, what = addressing(instruction, instruction.operands[0], np.int64), where(instruction)
    source = instruction.operands[1]
    assert isinstance(source, Vector)
    reads = [reading(instruction, part, np.uint32) for part in source.parts]

    def step(m: Machine) -> None:
        data = np.zeros((m.warps, WARP, 4), np.uint32)
        for index, read in enumerate(reads):
            matrix = m.by_warp(read(m)).reshape(m.warps, 8, 4)
            if transposed:
                halves = np.ascontiguousarray(matrix).view(np.uint16).transpose(0, 2, 1)
                matrix = np.ascontiguousarray(halves).view(np.uint32)
            data[:, 8 * index : 8 * index + 8] = matrix
        outer = m.active
        m.active = _first_lanes(m, 8 * count, what)
        try:
            m.store_shared(address(m), data.reshape(-1, 4), 16, what)
        finally:
            m.active = outer

    return step


def _shuffle(instruction: Instruction) -> Step:
    """Whole warps only: the mask is -1, the clamp that of 32 lanes."""
    mode, target, what = instruction.parts[2], destination(instruction), where(instruction)
    if mode not in ("bfly", "idx", "down", "up"):
        raise UnknownInstruction(what)
    value = reading(instruction, instruction.operands[1], np.uint32)
    other, clamp = (reading(instruction, each, np.uint32) for each in instruction.operands[2:4])
    lane = np.arange(WARP)

    def step(m: Machine) -> None:
        _first_lanes(m, WARP, what)
        by = m.by_warp(other(m)).astype(np.int64)
        if (clamp(m) != (0 if mode == "up" else 31)).any():
            raise UnknownInstruction(f"{what}: parts of warps")
        source = {"bfly": lane ^ by, "idx": by & 31, "down": lane + by, "up": lane - by}[mode]
        source = np.where((source < 0) | (source >= WARP), lane, source)
        m.put(target, np.take_along_axis(m.by_warp(value(m)), source, 1).reshape(-1))

    return step


def _elect(instruction: Instruction) -> Step:
    """One thread of each warp: the first."""
    assert isinstance(instruction.operands[0], Vector)
    leader, chosen = registers(instruction, instruction.operands[0])
    what = where(instruction)

    def step(m: Machine) -> None:
        _first_lanes(m, WARP, what)
        m.put(leader, np.zeros(1, np.uint32))
        m.put(chosen, np.tile(np.arange(WARP) == 0, m.warps))

    return step


def _reduce(instruction: Instruction) -> Step:
    """redux.sync.max.f32 and .min: of the lanes in the mask; numbers before NaN."""
    parts, what = instruction.parts, where(instruction)
    if parts[2] not in ("max", "min") or parts[-1] != "f32":
        raise UnknownInstruction(what)
    function = {"max": (np.fmax, np.maximum), "min": (np.fmin, np.minimum)}[parts[2]]["NaN" in parts]
    value = reading(instruction, instruction.operands[1], np.float32)
    members, target = reading(instruction, instruction.operands[2], np.uint32), destination(instruction)

    def step(m: Machine) -> None:
        _first_lanes(m, WARP, what)
        mask = m.by_warp(members(m))
        inside = (mask >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)
        if not inside.all() and (mask != mask[:, :1]).any():
            # Each lane names its own set.
            values = m.by_warp(value(m))
            sets = (mask[:, :, None] >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)
            neutral = np.float32(-np.inf if parts[2] == "max" else np.inf)
            m.put(target, function.reduce(np.where(sets, values[:, None, :], neutral), axis=2).reshape(-1))
            return
        neutral = np.float32(-np.inf if parts[2] == "max" else np.inf)
        best = function.reduce(np.where(inside, m.by_warp(value(m)), neutral), axis=1)
        m.put(target, np.repeat(best, WARP))

    return step


RULES: dict[str, Callable[[Instruction], Step]] = {
    "ld": _load,
    "st": _store,
    "cp": _copy,
    "ldmatrix": _load_matrix,
    "stmatrix": _store_matrix,
    "shfl": _shuffle,
    "elect": _elect,
    "redux": _reduce,
}
