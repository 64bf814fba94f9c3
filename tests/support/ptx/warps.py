# SPDX-License-Identifier: Apache-2.0
"""What the threads of a warp do together: ldmatrix, stmatrix, shfl, elect, redux."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.ptx.errors import UnknownInstruction
from tests.support.ptx.machine import WARP, Machine, Step, where
from tests.support.ptx.operands import addressing, destination, reading, registers
from tests.support.ptx.parsing import Instruction, Vector


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
    m.active = first_lanes(m, count, what)
    try:
        found = m.load_shared(address, 16, what)
    finally:
        m.active = outer
    return np.ascontiguousarray(found).reshape(m.warps, WARP, 4)


def first_lanes(m: Machine, count: int, what: str) -> np.ndarray | None:
    if m.active is not None:
        whole = m.by_warp(m.active)
        if (whole.any(1) != whole.all(1)).any():
            raise UnknownInstruction(f"{what}: by a part of a warp")
    if count == WARP:
        return m.active
    first = np.tile(np.arange(WARP) < count, m.warps)
    return first if m.active is None else first & m.active


def _store_matrix(instruction: Instruction) -> Step:
    count = _matrices(instruction)
    address, what = addressing(instruction, instruction.operands[0], np.int64), where(instruction)
    if "trans" in instruction.parts:
        raise UnknownInstruction(what)
    source = instruction.operands[1]
    assert isinstance(source, Vector)
    reads = [reading(instruction, part, np.uint32) for part in source.parts]

    def step(m: Machine) -> None:
        data = np.zeros((m.warps, WARP, 4), np.uint32)
        for index, read in enumerate(reads):
            data[:, 8 * index : 8 * index + 8] = m.by_warp(read(m)).reshape(m.warps, 8, 4)
        outer = m.active
        m.active = first_lanes(m, 8 * count, what)
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
        first_lanes(m, WARP, what)
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
        first_lanes(m, WARP, what)
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
        first_lanes(m, WARP, what)
        mask = m.by_warp(members(m))
        inside = (mask >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)
        if (mask != mask[:, :1]).any():
            raise UnknownInstruction(f"{what}: each lane names a set of its own")
        neutral = np.float32(-np.inf if parts[2] == "max" else np.inf)
        best = function.reduce(np.where(inside, m.by_warp(value(m)), neutral), axis=1)
        m.put(target, np.repeat(best, WARP))

    return step


RULES: dict[str, Callable[[Instruction], Step]] = {
    "ldmatrix": _load_matrix,
    "stmatrix": _store_matrix,
    "shfl": _shuffle,
    "elect": _elect,
    "redux": _reduce,
}
