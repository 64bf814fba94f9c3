# SPDX-License-Identifier: Apache-2.0
"""tcgen05: products in tensor memory (sm_100), issued by one thread, and the mbarriers that tell when they are done.
Until then the results read as NaN, and what the products read must not be overwritten."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.ptx.descriptors import matrices
from tests.support.ptx.errors import BadAccess, Race, Stuck, UnknownInstruction
from tests.support.ptx.machine import POISON, WARP, Machine, Step, where
from tests.support.ptx.operands import addressing, destination, reading, registers
from tests.support.ptx.parsing import Address, Constant, Instruction, Vector
from tests.support.ptx.tensor_cores import add_product, gather, numbers

LANES, COLUMNS = 128, 512
WIDTHS = {2: 128, 4: 64, 6: 32}
FORMATS = {"f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}}


class TensorMemory:
    """(blocks, lanes, columns) uint32. `true` is what the tensor cores have made, `seen` what may be read by now."""

    def __init__(self, blocks: int) -> None:
        self.true = np.full((blocks, LANES, COLUMNS), 0xFFFFFFFF, np.uint32)
        self.seen = self.true.copy()
        self.allocated = 0
        self.stores_under_way = False
        self.issued: list[tuple[np.ndarray, slice, list[object]]] = []
        self.phases: dict[int, np.ndarray] = {}  # of mbarriers, by address
        self.waiting: dict[int, list[tuple[np.ndarray, slice, list[object]]]] = {}


def _tensor_cores(instruction: Instruction) -> Step:
    kind, what = instruction.parts[1], where(instruction)
    if kind == "relinquish_alloc_permit":
        return lambda m: None
    if kind in ("alloc", "dealloc"):
        return _allocate(instruction)
    if kind == "mma":
        return _multiply(instruction)
    if kind == "commit":
        return _commit(instruction)
    if kind in ("ld", "st"):
        return _move(instruction)
    if kind == "wait::ld":
        return _finish_loads
    if kind == "wait::st":
        return _finish_stores
    raise UnknownInstruction(what)


def _allocate(instruction: Instruction) -> Step:
    what = where(instruction)
    columns = instruction.operands[1]
    assert isinstance(columns, Constant)
    if instruction.parts[1] == "dealloc":

        def free(m: Machine) -> None:
            m.unit(TensorMemory).allocated -= columns.value

        return free
    address = addressing(instruction, instruction.operands[0], np.int64)

    def allocate(m: Machine) -> None:
        memory = m.unit(TensorMemory)
        first = np.full((m.lanes, 1), memory.allocated, np.uint32)
        memory.allocated += columns.value
        if memory.allocated > COLUMNS:
            raise BadAccess(f"{what}: {memory.allocated} columns of tensor memory, of {COLUMNS}")
        m.store_shared(address(m), first, 4, what)

    return allocate


def _columns(memory: TensorMemory, first: int, count: int, what: str) -> slice:
    if not 0 <= first <= first + count <= memory.allocated:
        raise BadAccess(f"{what}: columns {first} to {first + count}, of {memory.allocated} allocated")
    return slice(first, first + count)


def _move(instruction: Instruction) -> Step:
    """Warp w reaches lanes 32 (w % 4) on. 32x32b: a lane each; 16x32bx2: the second half of the warp takes the lanes
    of the first, some columns further on."""
    parts, what = instruction.parts, where(instruction)
    store = parts[1] == "st"
    shape, count = parts[4], int(parts[5][1:])
    vector = next(each for each in instruction.operands if isinstance(each, Vector))
    address = next(each for each in instruction.operands if isinstance(each, Address))
    apart = next((each.value for each in instruction.operands if isinstance(each, Constant)), 0)
    if shape not in ("32x32b", "16x32bx2") or len(vector.parts) != count or parts[-1] != "b32":
        raise UnknownInstruction(what)
    base = addressing(instruction, address, np.int64)
    reads = [reading(instruction, part, np.uint32) for part in vector.parts] if store else []
    targets = [] if store else registers(instruction, vector)
    thread = np.arange(WARP)

    def step(m: Machine) -> None:
        memory = m.unit(TensorMemory)
        at = m.by_warp(base(m))
        quarter = (np.arange(m.warps) % (m.threads // WARP) % 4 * WARP)[:, None]
        lane = at >> 16
        if ((lane & ~16) != quarter).any() or (shape == "32x32b" and (lane & 16).any()):
            raise BadAccess(f"{what}: a warp reaches the 32 lanes of its own quarter only")
        halves = shape == "16x32bx2"
        rows = lane + (thread % 16 if halves else thread)
        first = (at & 0xFFFF) + (thread // 16 * apart if halves else 0)
        _columns(memory, int(first.min()), int(first.max() - first.min()) + count, what)
        index = (
            m.by_warp(m.block_of_lane)[:, :, None],
            rows[:, :, None],
            first[:, :, None] + np.arange(count),
        )
        if store:
            active = slice(None) if m.active is None else np.flatnonzero(m.by_warp(m.active).all(1))
            values, index = gather(m, reads)[active], tuple(each[active] for each in index)
            memory.true[index] = memory.seen[index] = values
            memory.stores_under_way = True
            return
        values = memory.seen[index]
        for number, register in enumerate(targets):
            m.arriving[register] = np.ascontiguousarray(values[:, :, number]).reshape(-1)
            m.registers[register] = POISON[32]

    return step


def _finish_loads(m: Machine) -> None:
    for register, value in m.arriving.items():
        m.put(register, value)
    m.arriving = {}


def _finish_stores(m: Machine) -> None:
    m.unit(TensorMemory).stores_under_way = False


def _lanes_of(height: int) -> np.ndarray:
    """Where the rows of a product are: with 64 of them, 16 in each quarter."""
    row = np.arange(height)
    return row if height == LANES else row // 16 * 32 + row % 16


def _multiply(instruction: Instruction) -> Step:
    """tcgen05.mma.cta_group::1.kind::f16 [d], a, b, descriptor, adds. a: in shared or in tensor memory."""
    parts, what = instruction.parts, where(instruction)
    kind = parts[3].removeprefix("kind::")
    if parts[2] != "cta_group::1" or kind not in FORMATS or len(parts) > 4:
        raise UnknownInstruction(what)
    d, a, b, shape, adds = instruction.operands
    target = addressing(instruction, d, np.int64)
    in_tensor_memory = isinstance(a, Address)
    of_a = addressing(instruction, a, np.int64) if in_tensor_memory else reading(instruction, a, np.uint64)
    of_b = reading(instruction, b, np.uint64)
    described, enabled = reading(instruction, shape, np.uint32), reading(instruction, adds, np.bool_)

    def step(m: Machine) -> None:
        memory = m.unit(TensorMemory)
        issuer = _one_per_block(m, what)
        blocks = m.block_of_lane[issuer]
        if memory.stores_under_way:
            raise Race(f"{what}: stores to tensor memory were not waited for")
        word, at = _same(m, described(m), issuer, what), _same(m, target(m), issuer, what)
        height, width = (word >> 24 & 31) << 4, (word >> 17 & 63) << 3
        names = [FORMATS[kind].get(word >> shift & 7) for shift in (7, 10)]
        if word & 0x1E06F != 0 or word >> 4 & 3 != 1 or names[0] is None or names[0] != names[1]:
            raise UnknownInstruction(f"{what}: an instruction descriptor of {word:#x}")
        name, depth = names[0], 8 if kind == "tf32" else 16
        right, taken = matrices(m, blocks, m.full(of_b(m))[issuer], width, depth, name, what, WIDTHS)
        lanes = _lanes_of(height) + (at >> 16)
        if in_tensor_memory:
            start = _same(m, of_a(m), issuer, what)
            columns = _columns(memory, start & 0xFFFF, 8, what)
            left = numbers(memory.seen[blocks][:, _lanes_of(height) + (start >> 16), columns], name)
        else:
            left, more = matrices(m, blocks, m.full(of_a(m))[issuer], height, depth, name, what, WIDTHS)
            taken += more
        columns = _columns(memory, at & 0xFFFF, width, what)
        place = (blocks[:, None, None], lanes[None, :, None], np.arange(COLUMNS)[columns][None, None, :])
        before = np.where(
            m.full(enabled(m))[issuer][:, None, None], memory.true[place].view(np.float32), np.float32(0)
        )
        memory.true[place] = add_product(before, left, right.transpose(0, 2, 1)).view(np.uint32)
        memory.seen[place] = 0xFFFFFFFF
        memory.issued.append((blocks, columns, taken))

    return step


def _one_per_block(m: Machine, what: str) -> np.ndarray:
    issuer = np.arange(m.lanes) if m.active is None else np.flatnonzero(m.active)
    if len(np.unique(m.block_of_lane[issuer])) != len(issuer):
        raise UnknownInstruction(f"{what}: by more than one thread of a block")
    return issuer


def _same(m: Machine, value: np.ndarray, lanes: np.ndarray, what: str) -> int:
    found = m.full(value)[lanes]
    if (found != found[0]).any():
        raise UnknownInstruction(f"{what}: blocks differ in an operand")
    return int(found[0])


def _commit(instruction: Instruction) -> Step:
    """What was issued before arrives at the mbarrier when it is done."""
    address, what = addressing(instruction, instruction.operands[0], np.int64), where(instruction)

    def step(m: Machine) -> None:
        memory = m.unit(TensorMemory)
        issuer = _one_per_block(m, what)
        at = _same(m, address(m), issuer, what)
        _known(memory, at, what)[m.block_of_lane[issuer]] += 1
        memory.waiting.setdefault(at, []).extend(memory.issued)
        memory.issued = []

    return step


def _known(memory: TensorMemory, at: int, what: str) -> np.ndarray:
    if at not in memory.phases:
        raise BadAccess(f"{what}: no mbarrier at {at:#x}")
    return memory.phases[at]


def _barriers(instruction: Instruction) -> Step:
    kind, what = instruction.parts[1], where(instruction)
    if kind == "try_wait" and instruction.parts[2] == "parity":
        return _await(instruction)
    address = addressing(instruction, instruction.operands[0], np.int64)
    if kind == "init" and instruction.operands[1] == Constant(1):

        def initialize(m: Machine) -> None:
            at = _same(m, address(m), _one_per_block(m, what), what)
            if at % 8 or not 0 <= at <= m.shared.limit - 8:
                raise BadAccess(f"{what}: an mbarrier at {at:#x}")
            m.unit(TensorMemory).phases[at] = np.zeros(m.lanes // m.threads, np.int64)

        return initialize
    if kind == "inval":

        def forget(m: Machine) -> None:
            at = _same(m, address(m), _one_per_block(m, what), what)
            _known(m.unit(TensorMemory), at, what)
            del m.unit(TensorMemory).phases[at]

        return forget
    raise UnknownInstruction(what)


def _await(instruction: Instruction) -> Step:
    """True once the phase of that parity is complete. All threads go together: if it is not by now, it never will
    be."""
    target, what = destination(instruction), where(instruction)
    address = addressing(instruction, instruction.operands[1], np.int64)
    parity = reading(instruction, instruction.operands[2], np.uint32)

    def step(m: Machine) -> None:
        memory = m.unit(TensorMemory)
        lanes = np.arange(m.lanes) if m.active is None else np.flatnonzero(m.active)
        at = _same(m, address(m), lanes, what)
        phase = _known(memory, at, what)[m.block_of_lane[lanes]]
        if ((phase & 1) == m.full(parity(m))[lanes]).any():
            raise Stuck(f"{what}: the phase is never completed")
        for blocks, columns, taken in memory.waiting.pop(at, []):
            for each in taken:
                m.races.unchanged(each, what)  # type: ignore[arg-type]
            memory.seen[blocks, :, columns] = memory.true[blocks, :, columns]
        m.put(target, np.ones(1, bool))

    return step


RULES: dict[str, Callable[[Instruction], Step]] = {"tcgen05": _tensor_cores, "mbarrier": _barriers}
