# SPDX-License-Identifier: Apache-2.0
"""Numbers: integers, floats, comparisons, selections, bits. Results are those of the PTX manual; fma rounds the sum
twice (in float64, then in float32), which differs from once in about one of 2**29 results."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from tests.support.ptx.errors import UnknownInstruction
from tests.support.ptx.formats import from_bf16, to_bf16
from tests.support.ptx.machine import Machine, Step, where
from tests.support.ptx.operands import TYPES, Read, destination, reading, registers, type_of
from tests.support.ptx.parsing import Instruction, Register, Vector

TINY = np.finfo(np.float32).tiny
FLOATS = (np.float16, np.float32, np.float64)
COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
OPPOSITE = {"equ": np.not_equal, "neu": np.equal, "ltu": np.greater_equal, "leu": np.greater}
OPPOSITE |= {"gtu": np.less_equal, "geu": np.less}


def flushed(value: np.ndarray) -> np.ndarray:
    """Subnormal numbers as zeros of their sign."""
    return np.where(np.abs(value) < TINY, np.copysign(np.float32(0), value), value)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    if a.dtype == np.float64:
        raise UnknownInstruction("fma.f64")
    return (a.astype(np.float64) * b + c).astype(a.dtype)


def apply(instruction: Instruction, function: Callable[..., np.ndarray], reads: list[Read]) -> Step:
    """The result of a function of the operands into the first one."""
    target = destination(instruction)
    if len(reads) == 2:
        first, second = reads
        return lambda m: m.put(target, function(first(m), second(m)))
    return lambda m: m.put(target, function(*[read(m) for read in reads]))


def elementwise(instruction: Instruction, function: Callable[..., np.ndarray]) -> Step:
    """In the type that the opcode ends with: also pairs (f32x2, f16x2), f32 with f16 operands, and .ftz."""
    name = instruction.parts[-1]
    operands = instruction.operands[1:]
    if name in ("f16", "bf16") and "f32" in instruction.parts:
        # The last operand is f32, the others are widened.
        half, widen = (np.float16, np.float32) if name == "f16" else (np.uint16, from_bf16)
        reads = [reading(instruction, each, half) for each in operands[:-1]]
        reads.append(reading(instruction, operands[-1], np.float32))
        return apply(
            instruction, lambda *values: function(*[widen(v) for v in values[:-1]], values[-1]), reads
        )
    if name.startswith("bf16"):
        return _in_bf16(instruction, function)
    if name.endswith("x2"):
        half = TYPES[name[:-2]]
        whole = np.uint64 if half is np.float32 else np.uint32
        reads = [reading(instruction, each, whole) for each in operands]

        def pairs(*values: np.ndarray) -> np.ndarray:
            result = function(*[value.view(half).reshape(-1, 2) for value in values])
            return np.ascontiguousarray(result).reshape(-1).view(whole)

        return apply(instruction, pairs, reads)
    kind = type_of(instruction, name)
    reads = [reading(instruction, each, kind) for each in operands]
    if "ftz" in instruction.parts:
        return apply(instruction, lambda *values: flushed(function(*[flushed(v) for v in values])), reads)
    return apply(instruction, function, reads)


def _in_bf16(instruction: Instruction, function: Callable[..., np.ndarray]) -> Step:
    """Of one number, or of two in a word: in float32, rounded."""
    word = np.uint32 if instruction.parts[-1] == "bf16x2" else np.uint16
    reads = [reading(instruction, each, word) for each in instruction.operands[1:]]

    def compute(*values: np.ndarray) -> np.ndarray:
        wide = [from_bf16(value.view(np.uint16)).reshape(len(value), -1) for value in values]
        return np.ascontiguousarray(to_bf16(np.ascontiguousarray(function(*wide)))).reshape(-1).view(word)

    return apply(instruction, compute, reads)


def _multiply(instruction: Instruction) -> Step:
    parts = instruction.parts
    if "wide" in parts or "hi" in parts:
        return _widened(instruction, lambda a, b: a * b)
    return elementwise(instruction, np.multiply)


def _multiply_add(instruction: Instruction) -> Step:
    parts = instruction.parts
    if "cc" in parts or parts[0] == "madc":
        return _with_carry(instruction)
    if "wide" in parts:
        return _widened(instruction, lambda a, b, c: a * b + c)
    return elementwise(instruction, lambda a, b, c: a * b + c)


def _widened(instruction: Instruction, function: Callable[..., np.ndarray]) -> Step:
    """The product in twice the bits; .hi takes its upper half, and .wide adds in twice the bits."""
    kind = type_of(instruction, instruction.parts[-1])
    size = np.dtype(kind).itemsize
    wide = TYPES[f"{'s' if np.dtype(kind).kind == 'i' else 'u'}{16 * size}"] if size < 8 else kind
    reads = [reading(instruction, each, kind) for each in instruction.operands[1:3]]
    reads += [reading(instruction, each, wide) for each in instruction.operands[3:]]
    if "hi" in instruction.parts:
        if size == 8:
            raise UnknownInstruction(where(instruction))
        half = 8 * size
        return apply(instruction, lambda a, b: ((a.astype(wide) * b) >> half).astype(kind), reads)
    return apply(instruction, lambda a, b, *c: function(a.astype(wide), b.astype(wide), *c), reads)


def _fuse(instruction: Instruction) -> Step:
    if instruction.parts[1] != "rn":
        raise UnknownInstruction(where(instruction))
    return elementwise(instruction, fused)


def _with_carry(instruction: Instruction) -> Step:
    """mad.lo.cc.u32 sets the carry, madc.hi.u32 adds it: the long multiplication of cos and sin."""
    if instruction.opcode not in ("mad.lo.cc.u32", "madc.hi.u32"):
        raise UnknownInstruction(where(instruction))
    target = destination(instruction)
    a, b, c = (reading(instruction, each, np.uint32) for each in instruction.operands[1:])
    high = instruction.parts[0] == "madc"

    def step(m: Machine) -> None:
        product = a(m).astype(np.uint64) * b(m)
        part = product >> np.uint64(32) if high else product & np.uint64(0xFFFFFFFF)
        total = part + c(m) + (m.carry if high else np.uint64(0))
        if not high:
            m.carry = total >> np.uint64(32)
        m.put(target, total.astype(np.uint32))

    return step


def _divide(instruction: Instruction) -> Step:
    """Of integers, towards zero. (Approximate ones are in `approximations`.)"""
    kind = type_of(instruction, instruction.parts[-1])
    if kind in FLOATS:
        raise UnknownInstruction(where(instruction))
    reads = [reading(instruction, each, kind) for each in instruction.operands[1:]]
    remainder = instruction.parts[0] == "rem"

    def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        divisor = np.where(b == 0, kind(1), b)
        rest = np.fmod(a, divisor)
        return rest if remainder else (a - rest) // divisor

    return apply(instruction, divide, reads)


def _shift(instruction: Instruction) -> Step:
    """Shifts beyond the width give zeros, or copies of the sign."""
    kind = type_of(instruction, instruction.parts[-1])
    bits = 8 * np.dtype(kind).itemsize
    value = reading(instruction, instruction.operands[1], kind)
    amount = reading(instruction, instruction.operands[2], np.uint32)
    left, signed = instruction.parts[0] == "shl", np.dtype(kind).kind == "i"

    def shift(a: np.ndarray, by: np.ndarray) -> np.ndarray:
        inside = np.minimum(by, bits - 1).astype(kind)
        shifted = a << inside if left else a >> inside
        return shifted if signed else np.where(by < bits, shifted, kind(0))

    return apply(instruction, shift, [value, amount])


def _funnel(instruction: Instruction) -> Step:
    """shf.l.wrap: the upper word of (b:a) << (c & 31)."""
    if not instruction.opcode.startswith("shf.l.wrap"):
        raise UnknownInstruction(where(instruction))
    reads = [reading(instruction, each, np.uint32) for each in instruction.operands[1:]]

    def shift(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        return ((both << (c & 31).astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)

    return apply(instruction, shift, reads)


def _extract(instruction: Instruction) -> Step:
    """bfe: `length` bits from `start` on, with their sign if signed."""
    kind = type_of(instruction, instruction.parts[-1])
    value = reading(instruction, instruction.operands[1], kind)
    start, length = (reading(instruction, each, np.uint32) for each in instruction.operands[2:])

    def step(m: Machine) -> np.ndarray:
        begin, count = start(m).astype(np.int64), length(m).astype(np.int64)
        if (begin + count > 32).any() or (count == 0).any():
            raise UnknownInstruction(f"{where(instruction)}: bits beyond the word")
        return ((value(m).astype(np.int64) << (64 - begin - count)) >> (64 - count)).astype(kind)

    def unsigned(m: Machine) -> np.ndarray:
        return (value(m) >> start(m)) & ((np.uint64(1) << length(m).astype(np.uint64)) - np.uint64(1)).astype(
            kind
        )

    read = step if np.dtype(kind).kind == "i" else unsigned
    return apply(instruction, lambda each: each, [read])


def _compare(instruction: Instruction) -> Step:
    name, half = instruction.parts[1], instruction.parts[-1] == "bf16"
    kind = np.uint16 if half else type_of(instruction, instruction.parts[-1])
    if isinstance(instruction.operands[0], Vector) or len(instruction.operands) != 3:
        raise UnknownInstruction(where(instruction))
    if name in OPPOSITE:
        opposite = OPPOSITE[name]
        test = lambda a, b: ~opposite(a, b)  # noqa: E731
    elif name == "num":
        test = lambda a, b: ~(np.isnan(a) | np.isnan(b))  # noqa: E731
    elif name == "ne" and (half or kind in FLOATS):  # ordered: false for NaN, unlike numpy's
        test = lambda a, b: (a < b) | (a > b)  # noqa: E731
    elif name in COMPARISONS:
        test = COMPARISONS[name]
    else:
        raise UnknownInstruction(where(instruction))
    reads = [reading(instruction, each, kind) for each in instruction.operands[1:3]]
    return apply(instruction, (lambda a, b: test(from_bf16(a), from_bf16(b))) if half else test, reads)


def _select(instruction: Instruction) -> Step:
    kind = type_of(instruction, instruction.parts[-1])
    a, b = (reading(instruction, each, kind) for each in instruction.operands[1:3])
    condition = reading(instruction, instruction.operands[3], np.bool_)
    return apply(instruction, np.where, [condition, a, b])


def _logic(instruction: Instruction) -> Step:
    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}
    return elementwise(instruction, function[instruction.parts[0]])


def _extreme(instruction: Instruction) -> Step:
    """Of a number and NaN, the number; with .NaN, NaN."""
    name, number = instruction.parts[0], "NaN" not in instruction.parts
    functions = {"max": (np.maximum, np.fmax), "min": (np.minimum, np.fmin)}
    function = functions[name][number and instruction.parts[-1][0] == "f"]
    return elementwise(instruction, lambda *values: reduce(function, values))  # of two, or of three


def _move(instruction: Instruction) -> Step:
    """LLVM moves registers between tcgen05.ld and its wait, which computes nothing: what is moved arrives later too."""
    step = _move_now(instruction)
    target, source = (
        {each.index for each in getattr(operand, "parts", (operand,)) if isinstance(each, Register)}
        for operand in instruction.operands
    )

    def move(m: Machine) -> None:
        step(m)
        if m.arriving and not source.isdisjoint(m.arriving):
            seen = {index: m.registers[index] for index in source | target}
            for index in source & m.arriving.keys():
                m.registers[index] = m.arriving[index]
            step(m)
            m.arriving |= {index: m.registers[index] for index in target}
            for index, value in seen.items():
                m.registers[index] = value

    return move


def _move_now(instruction: Instruction) -> Step:
    """Also packs two registers into one and unpacks them."""
    target, source = instruction.operands
    kind = type_of(instruction, instruction.parts[-1])
    if isinstance(source, Vector):
        part = TYPES[f"u{8 * np.dtype(kind).itemsize // len(source.parts)}"]
        reads = [reading(instruction, each, part) for each in source.parts]

        def pack(*values: np.ndarray) -> np.ndarray:
            return np.stack(np.broadcast_arrays(*values), axis=-1).reshape(-1).view(kind)

        return apply(instruction, pack, reads)
    if isinstance(target, Vector):
        part = TYPES[f"u{8 * np.dtype(kind).itemsize // len(target.parts)}"]
        read, parts = reading(instruction, source, kind), registers(instruction, target)

        def unpack(m: Machine) -> None:
            values = np.ascontiguousarray(read(m)).view(part).reshape(-1, len(parts))
            for index, register in enumerate(parts):
                m.put(register, np.ascontiguousarray(values[:, index]))

        return unpack
    return apply(instruction, lambda value: value, [reading(instruction, source, kind)])


def _permute(instruction: Instruction) -> Step:
    """prmt: each four bits of the selector name a byte of the second word and the first; the highest bit, its sign."""
    if instruction.opcode != "prmt.b32":
        raise UnknownInstruction(where(instruction))
    reads = [reading(instruction, each, np.uint32) for each in instruction.operands[1:]]

    def permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        result = np.uint64(0)
        for index in range(4):
            chosen = selector.astype(np.uint64) >> np.uint64(4 * index)
            byte = (both >> ((chosen & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            result = result | np.where(chosen & np.uint64(8), sign, byte) << np.uint64(8 * index)
        return result.astype(np.uint32)

    return apply(instruction, permute, reads)


def _copysign(instruction: Instruction) -> Step:
    return elementwise(instruction, lambda sign, value: np.copysign(value, sign))


RULES: dict[str, Callable[[Instruction], Step]] = {
    "add": lambda instruction: elementwise(instruction, np.add),
    "sub": lambda instruction: elementwise(instruction, np.subtract),
    "mul": _multiply,
    "mad": _multiply_add,
    "madc": _multiply_add,
    "fma": _fuse,
    "div": _divide,
    "rem": _divide,
    "abs": lambda instruction: elementwise(instruction, np.abs),
    "neg": lambda instruction: elementwise(instruction, np.negative),
    "min": _extreme,
    "max": _extreme,
    **dict.fromkeys(("and", "or", "xor", "not"), _logic),
    "shl": _shift,
    "shr": _shift,
    "shf": _funnel,
    "bfe": _extract,
    "setp": _compare,
    "selp": _select,
    "mov": _move,
    "cvta": _move,  # addresses are those of global memory
    "copysign": _copysign,
    "prmt": _permute,
}
