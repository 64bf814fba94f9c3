# SPDX-License-Identifier: Apache-2.0
"""cvt: between integers and floats, and to the 16-bit floats of the tensor cores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.ptx.arithmetic import apply, flushed
from tests.support.ptx.errors import UnknownInstruction
from tests.support.ptx.formats import from_bf16, to_bf16
from tests.support.ptx.machine import Step, where
from tests.support.ptx.operands import TYPES, reading, type_of
from tests.support.ptx.parsing import Instruction

ROUNDINGS = {"rni": np.rint, "rmi": np.floor, "rpi": np.ceil, "rzi": np.trunc}


def _to_tf32(value: np.ndarray) -> np.ndarray:
    """To nearest, ties away from zero."""
    return ((value.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def _narrow(name: str) -> Callable[[np.ndarray], np.ndarray]:
    if name == "bf16":
        return to_bf16
    return lambda value: value.astype(np.float16).view(np.uint16)


def _pair(instruction: Instruction, name: str) -> Step:
    """The first source becomes the upper half."""
    narrow = _narrow(name)
    high, low = (reading(instruction, each, np.float32) for each in instruction.operands[1:])

    def pack(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
        return (narrow(upper).astype(np.uint32) << np.uint32(16)) | narrow(lower)

    return apply(instruction, pack, [high, low])


def convert(instruction: Instruction) -> Step:
    parts = instruction.parts
    to, source = parts[-2], parts[-1]
    modes = set(parts[1:-2])
    if not modes <= {*ROUNDINGS, "rn", "ftz", "rna"}:
        raise UnknownInstruction(where(instruction))
    if to in ("bf16x2", "f16x2") and source == "f32" and modes == {"rn"}:
        return _pair(instruction, to[:-2])
    if source == "bf16":
        kind, widen = np.uint16, from_bf16
    else:
        kind, widen = type_of(instruction, source), lambda value: value
    read = reading(instruction, instruction.operands[1], kind)
    if to in ("bf16", "tf32"):
        function = to_bf16 if to == "bf16" else _to_tf32
        return apply(instruction, lambda value: function(widen(value).astype(np.float32)), [read])
    target = TYPES[to]
    whole = [ROUNDINGS[mode] for mode in modes if mode in ROUNDINGS]

    def change(value: np.ndarray) -> np.ndarray:
        value = widen(value)
        if "ftz" in modes:
            value = flushed(value)
        for rounding in whole:
            value = rounding(value)
        if value.dtype.kind == "f" and np.dtype(target).kind in "iu":  # what does not fit becomes the nearest
            limits = np.iinfo(target)
            bounded = np.clip(np.nan_to_num(value.astype(np.float64), nan=0.0), limits.min, limits.max)
            return bounded.astype(target)
        return value.astype(target)

    return apply(instruction, change, [read])


def _store_wide(instruction: Instruction) -> Step:
    """cvt into a register wider than the type extends it; ours never do."""
    register = instruction.operands[0]
    name = instruction.parts[-2]
    bits = {"bf16": 16, "tf32": 32, "f16x2": 32, "bf16x2": 32}.get(name) or 8 * np.dtype(
        TYPES.get(name, np.uint64)
    ).itemsize
    if getattr(register, "bits", bits) != bits:
        raise UnknownInstruction(f"{where(instruction)}: the register has other bits")
    return convert(instruction)


RULES: dict[str, Callable[[Instruction], Step]] = {"cvt": _store_wide}
