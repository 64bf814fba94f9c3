# SPDX-License-Identifier: Apache-2.0
"""Between memory and registers: ld, st, cp.async."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.ptx.errors import UnknownInstruction
from tests.support.ptx.machine import Machine, Step, where
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
            m.put(
                register,
                value
                if bits == 8 * element
                else value.astype(TYPES[f"{'s' if value.dtype.kind == 'i' else 'u'}{bits}"]),
            )

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
    if parts[2] == "commit_group":
        return lambda m: _commit(m, what)
    if parts[2] == "wait_group":
        return lambda m: _wait(m, instruction.operands[0].value, what)  # type: ignore[union-attr]
    if parts[2] not in ("ca", "cg") or "mbarrier" in parts or "bulk" in parts:
        raise UnknownInstruction(what)
    target = addressing(instruction, instruction.operands[0], np.int64)
    source = addressing(instruction, instruction.operands[1], np.uint64)
    size = instruction.operands[2].value  # type: ignore[union-attr]
    count = (
        reading(instruction, instruction.operands[3], np.uint32) if len(instruction.operands) > 3 else None
    )

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
    m.expect_all(what)
    m.copy_groups.append(m.copies)
    m.copies = []


def _wait(m: Machine, keep: int, what: str) -> None:
    m.expect_all(what)
    m.finish_copies(keep)


RULES: dict[str, Callable[[Instruction], Step]] = {"ld": _load, "st": _store, "cp": _copy}
