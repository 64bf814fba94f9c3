# SPDX-License-Identifier: Apache-2.0
"""mma.sync: products of small matrices that the registers of a warp hold. Products are summed in float64 and rounded
once, so a GPU's sums, which it rounds more often, may differ in the last bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.ptx.errors import UnknownInstruction
from tests.support.ptx.formats import from_bf16
from tests.support.ptx.machine import WARP, Machine, Step, where
from tests.support.ptx.operands import Read, addressing, reading, registers
from tests.support.ptx.parsing import Instruction, Vector
from tests.support.ptx.warps import first_lanes

GROUPS, THREADS = 8, 4  # a warp as eight groups of four


def numbers(words: np.ndarray, name: str) -> np.ndarray:
    """(..., words) uint32 -> float64: two fp16 or bf16 per word, or one tf32, whose last 13 bits are ignored."""
    words = np.ascontiguousarray(words)
    if name == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if name == "f16":
        return words.view(np.float16).astype(np.float64)
    if name == "bf16":
        return from_bf16(words.view(np.uint16)).astype(np.float64)
    raise UnknownInstruction(f"no rule for operands of {name}")


def left_matrix(fragments: np.ndarray, name: str) -> np.ndarray:
    """(warps, 32, 4) words of A -> (warps, 16, k): rows g and g + 8, then the second half of k."""
    values = numbers(fragments, name).reshape(len(fragments), GROUPS, THREADS, 2, 2, -1)
    return values.transpose(0, 4, 1, 3, 2, 5).reshape(len(fragments), 16, -1)


def right_matrix(fragments: np.ndarray, name: str) -> np.ndarray:
    """(warps, 32, 2) words of B -> (warps, k, 8): a lane's column is its group."""
    values = numbers(fragments, name).reshape(len(fragments), GROUPS, THREADS, 2, -1)
    return values.transpose(0, 3, 2, 4, 1).reshape(len(fragments), -1, 8)


def gather(m: Machine, reads: list[Callable[[Machine], np.ndarray]]) -> np.ndarray:
    """(warps, 32, registers) uint32."""
    found = np.empty((m.warps, WARP, len(reads)), np.uint32)
    for index, read in enumerate(reads):
        found[:, :, index] = m.by_warp(read(m))
    return found


def scatter(m: Machine, targets: list[int], values: np.ndarray) -> None:
    """values: (warps, 32, registers) float32."""
    for index, target in enumerate(targets):
        m.put(target, np.ascontiguousarray(values[:, :, index]).reshape(-1))


def add_product(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """c: (..., m, n) float32."""
    return (np.matmul(a, b) + c).astype(np.float32)


def to_accumulators(matrix: np.ndarray) -> np.ndarray:
    """(warps, 16, n) -> (warps, 32, n / 2): rows g and g + 8 of column pairs, for each eight columns."""
    warps, _, n = matrix.shape
    parts = matrix.reshape(warps, 2, GROUPS, n // 8, THREADS, 2)
    return parts.transpose(0, 2, 4, 3, 1, 5).reshape(warps, WARP, n // 2)


def from_accumulators(values: np.ndarray) -> np.ndarray:
    """(warps, 32, n / 2) uint32 -> (warps, 16, n) float32."""
    warps, _, count = values.shape
    parts = values.view(np.float32).reshape(warps, GROUPS, THREADS, count // 4, 2, 2)
    return parts.transpose(0, 4, 1, 3, 2, 5).reshape(warps, 16, 2 * count)


def _multiply(instruction: Instruction) -> Step:
    """mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32, with bf16 alike, and m16n8k8 with tf32."""
    parts, what = instruction.parts, where(instruction)
    name = parts[7]
    if parts[1:3] != ["sync", "aligned"] or parts[4:] != ["row", "col", "f32", name, name, "f32"]:
        raise UnknownInstruction(what)
    if parts[3] != {"f16": "m16n8k16", "bf16": "m16n8k16", "tf32": "m16n8k8"}.get(name):
        raise UnknownInstruction(what)
    targets = registers(instruction, instruction.operands[0])
    a, b, c = _fragments(instruction)

    def step(m: Machine) -> None:
        first_lanes(m, WARP, what)
        left, right = left_matrix(gather(m, a), name), right_matrix(gather(m, b), name)
        scatter(m, targets, to_accumulators(add_product(from_accumulators(gather(m, c)), left, right)))

    return step


def _fragments(instruction: Instruction) -> list[list[Read]]:
    """How to read the registers of each matrix: a, b and the accumulator."""
    return [
        [reading(instruction, part, np.uint32) for part in each.parts]
        for each in instruction.operands[1:]
        if isinstance(each, Vector)
    ]


def _warp_matrix(instruction: Instruction) -> Step:
    """wmma: as mma, but who holds which element is the hardware's secret. Here lane l holds row l % 16 of a and of the
    transpose of b (both halves of the warp the same), and 8 elements of a row of the accumulator."""
    parts, what = instruction.parts, where(instruction)
    if "m16n16k16" not in parts or "sync" not in parts:
        raise UnknownInstruction(what)
    if parts[1] == "load" and parts[2] in "ab" and parts[-1] in ("f16", "bf16"):
        return _load_warp_matrix(instruction)
    if parts[1] == "store" and parts[-1] == "f32" and parts[5] == "row":
        return _store_warp_matrix(instruction)
    if parts[1] != "mma" or parts[4:6] != ["row", "col"] or (parts[-1] != "f32" and parts[-1] != "bf16"):
        raise UnknownInstruction(what)
    name = "bf16" if "bf16" in parts else "f16"
    targets = registers(instruction, instruction.operands[0])
    a, b, c = _fragments(instruction)

    def step(m: Machine) -> None:
        first_lanes(m, WARP, what)
        left, right = (numbers(gather(m, each), name)[:, :16, :16] for each in (a, b))
        total = gather(m, c).view(np.float32).reshape(m.warps, 16, 16)
        scatter(m, targets, add_product(total, left, right.transpose(0, 2, 1)).reshape(m.warps, WARP, 8))

    return step


def _load_warp_matrix(instruction: Instruction) -> Step:
    what, shared = where(instruction), "shared" in instruction.opcode
    along = "row" if instruction.parts[2] == "a" else "col"  # the order in which a row is one line of memory
    targets = registers(instruction, instruction.operands[0])
    address = addressing(instruction, instruction.operands[1], np.int64 if shared else np.uint64)
    stride = reading(instruction, instruction.operands[2], np.uint32)
    line = np.arange(WARP) % 16

    def step(m: Machine) -> None:
        first_lanes(m, WARP, what)
        if along not in instruction.parts:
            raise UnknownInstruction(f"{what}: transposed")
        base = m.by_warp(address(m))
        offset = (line * m.by_warp(stride(m)).astype(np.int64) * 2).astype(base.dtype)
        load = m.load_shared if shared else m.load_global
        for half in range(2):
            found = load((base + offset + np.array(16 * half, base.dtype)).reshape(-1), 16, what)
            for index in range(4):
                m.put(targets[4 * half + index], np.ascontiguousarray(found[:, index]))

    return step


def _store_warp_matrix(instruction: Instruction) -> Step:
    what, shared = where(instruction), "shared" in instruction.opcode
    address = addressing(instruction, instruction.operands[0], np.int64 if shared else np.uint64)
    source = instruction.operands[1]
    assert isinstance(source, Vector)
    reads = [reading(instruction, part, np.uint32) for part in source.parts]
    stride = reading(instruction, instruction.operands[2], np.uint32)
    lane = np.arange(WARP)

    def step(m: Machine) -> None:
        first_lanes(m, WARP, what)
        base = m.by_warp(address(m))
        offset = (lane // 2 * m.by_warp(stride(m)).astype(np.int64) + lane % 2 * 8) * 4
        at = base + offset.astype(base.dtype)
        values = gather(m, reads).reshape(m.lanes, 8)
        store = m.store_shared if shared else m.store_global
        for half in range(2):
            store(
                (at + np.array(16 * half, base.dtype)).reshape(-1),
                values[:, 4 * half : 4 * half + 4],
                16,
                what,
            )

    return step


RULES: dict[str, Callable[[Instruction], Step]] = {"mma": _multiply, "wmma": _warp_matrix}
