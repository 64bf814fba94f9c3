# SPDX-License-Identifier: Apache-2.0
"""How an instruction reads its operands: as arrays of the type it names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.ptx.errors import UnknownInstruction
from tests.support.ptx.machine import Machine, where
from tests.support.ptx.memory import UNSIGNED
from tests.support.ptx.parsing import Address, Constant, Instruction, Name, Operand, Register, Vector

SINK = -1  # a result that is not wanted
Read = Callable[[Machine], np.ndarray]

TYPES: dict[str, type] = {"pred": np.bool_, "f16": np.float16, "f32": np.float32, "f64": np.float64}
TYPES |= {f"{kind}{8 * size}": each for size, each in UNSIGNED.items() for kind in "bu"}
TYPES |= {"s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64}


def type_of(instruction: Instruction, name: str) -> type:
    if name not in TYPES:
        raise UnknownInstruction(f"{where(instruction)}: no rule for the type {name!r}")
    return TYPES[name]


def destination(instruction: Instruction, operand: Operand | None = None) -> int:
    operand = instruction.operands[0] if operand is None else operand
    if operand == Name("_"):
        return SINK
    if not isinstance(operand, Register):
        raise UnknownInstruction(f"{where(instruction)}: expected a register to write")
    return operand.index


def registers(instruction: Instruction, operand: Operand) -> list[int]:
    parts = operand.parts if isinstance(operand, Vector) else (operand,)
    return [destination(instruction, part) for part in parts]


def reading(instruction: Instruction, operand: Operand, kind: type) -> Read:
    """As `kind`. A wider register gives its low bits."""
    if isinstance(operand, Register):
        return _reading_register(operand, np.dtype(kind))
    if isinstance(operand, Constant):
        if kind is np.bool_:
            fixed = np.array([operand.value != 0])
        else:
            size = np.dtype(kind).itemsize
            fixed = np.array([operand.value % (1 << 8 * size)], UNSIGNED[size]).view(kind)
        return lambda m: fixed
    if isinstance(operand, Name):
        return _reading_name(instruction, operand.text, kind)
    raise UnknownInstruction(f"{where(instruction)}: expected a value, got {operand}")


def _reading_register(operand: Register, kind: np.dtype) -> Read:
    index = operand.index
    if operand.bits == 8 * kind.itemsize or operand.bits == 1:
        return lambda m: m.registers[index].view(kind)
    own, low = UNSIGNED[operand.bits // 8], UNSIGNED[kind.itemsize]
    return lambda m: m.registers[index].view(own).astype(low).view(kind)


def _reading_name(instruction: Instruction, name: str, kind: type) -> Read:
    unsigned = UNSIGNED[np.dtype(kind).itemsize]

    def read(m: Machine) -> np.ndarray:
        if name in m.special:
            return m.special[name].astype(unsigned).view(kind)
        if name in m.names:
            return np.array([m.names[name]], unsigned).view(kind)
        raise UnknownInstruction(f"{where(instruction)}: nothing is called {name!r}")

    return read


def addressing(instruction: Instruction, operand: Operand, kind: type) -> Read:
    """The addresses of [register + offset]: uint64, or int64 offsets in shared and local memory."""
    if not isinstance(operand, Address):
        raise UnknownInstruction(f"{where(instruction)}: expected an address, got {operand}")
    wide = isinstance(operand.base, Register) and operand.base.bits == 64
    base = reading(instruction, operand.base, np.uint64 if wide or kind is np.uint64 else np.uint32)
    offset = operand.offset
    if kind is np.uint64:
        step = np.array([offset % (1 << 64)], np.uint64)
        return lambda m: base(m) + step if offset else base(m)
    return lambda m: base(m).astype(np.int64) + offset
