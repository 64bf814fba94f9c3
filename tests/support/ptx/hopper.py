# SPDX-License-Identifier: Apache-2.0
"""wgmma: products by groups of four warps (sm_90), which run on while the warps go on. Until they are waited for, their
results read as NaN, and what they read must not be overwritten."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tests.support.ptx.descriptors import matrices
from tests.support.ptx.errors import UnknownInstruction
from tests.support.ptx.machine import POISON, WARP, Machine, Step, where
from tests.support.ptx.operands import reading, registers
from tests.support.ptx.parsing import Constant, Instruction, Vector
from tests.support.ptx.tensor_cores import (
    add_product,
    from_accumulators,
    gather,
    left_matrix,
    to_accumulators,
)

FOUR = 4  # warps
WIDTHS = {2: 128, 3: 128, 4: 64, 5: 64, 6: 32, 7: 32}  # the mode is the upper two of the three bits


class Products:
    """What is under way: the true values of registers, the registers of each group, oldest first."""

    def __init__(self, blocks: int) -> None:
        self.values: dict[int, np.ndarray] = {}
        self.open: list[tuple[int, list[object]]] = []
        self.groups: list[list[tuple[int, list[object]]]] = []


def _warp_groups(instruction: Instruction) -> Step:
    kind, what = instruction.parts[1], where(instruction)
    if kind == "fence":
        return lambda m: None
    if kind == "commit_group":
        return _commit
    if kind == "wait_group":
        keep = instruction.operands[0]
        assert isinstance(keep, Constant)
        return lambda m: _wait(m, keep.value, what)
    if kind != "mma_async":
        raise UnknownInstruction(what)
    return _multiply(instruction)


def _commit(m: Machine) -> None:
    products = m.unit(Products)
    products.groups.append(products.open)
    products.open = []


def _wait(m: Machine, keep: int, what: str) -> None:
    products = m.unit(Products)
    while len(products.groups) > keep:
        done = products.groups.pop(0)
        later = {register for group in [*products.groups, products.open] for register, _ in group}
        for register, taken in done:
            for each in taken:
                m.races.unchanged(each, what)  # type: ignore[arg-type]
            if register in products.values and register not in later:
                m.put(register, products.values.pop(register))


def _multiply(instruction: Instruction) -> Step:
    """wgmma.mma_async.sync.aligned.m64nNkK.f32.type.type d, a, b, scale-d, 1, 1[, 0[, 0]]."""
    parts, what = instruction.parts, where(instruction)
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", parts[4])
    name = parts[-1]
    if shape is None or parts[5:] != ["f32", name, name]:
        raise UnknownInstruction(what)
    n, k = int(shape[1]), int(shape[2])
    d, a, b, scale = instruction.operands[:4]
    if instruction.operands[4:6] != (Constant(1),) * 2 or set(instruction.operands[6:]) - {Constant(0)}:
        raise UnknownInstruction(f"{what}: negated or transposed")
    targets = registers(instruction, d)
    of_a = [reading(instruction, part, np.uint32) for part in a.parts] if isinstance(a, Vector) else None
    a_word = None if of_a else reading(instruction, a, np.uint64)
    b_word, adds = reading(instruction, b, np.uint64), reading(instruction, scale, np.bool_)

    def step(m: Machine) -> None:
        m.expect_all(what)
        if m.warps % FOUR:
            raise UnknownInstruction(f"{what}: by a part of a group")
        products = m.unit(Products)
        blocks = m.block_of_lane[:: FOUR * WARP]
        right, taken = matrices(m, blocks, _leaders(m, b_word(m)), n, k, name, what, WIDTHS)
        if of_a is not None:
            left = left_matrix(gather(m, of_a), name).reshape(len(blocks), 64, k)
        else:
            assert a_word is not None
            left, more = matrices(m, blocks, _leaders(m, a_word(m)), 64, k, name, what, WIDTHS)
            taken += more
        held = [products.values.get(each, m.registers[each]).view(np.uint32) for each in targets]
        before = np.stack([m.by_warp(each) for each in held], axis=-1)
        total = np.where(m.by_warp(adds(m))[:, :1, None], from_accumulators(before), np.float32(0))
        result = add_product(total.reshape(len(blocks), 64, n), left, right.transpose(0, 2, 1))
        values = to_accumulators(result.reshape(m.warps, 16, n))
        for index, register in enumerate(targets):
            products.values[register] = np.ascontiguousarray(values[:, :, index]).reshape(-1)
            m.registers[register] = POISON[32]
            products.open.append((register, taken if index == 0 else []))

    return step


def _leaders(m: Machine, value: np.ndarray) -> np.ndarray:
    """Of each four warps, the first one's."""
    return m.full(value)[:: FOUR * WARP]


RULES: dict[str, Callable[[Instruction], Step]] = {"wgmma": _warp_groups}
