# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel's instructions. All threads go together while their branches agree; where they part, one side goes
first, then the other, up to where they meet again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tests.support.ptx import (
    approximations,
    arithmetic,
    blackwell,
    conversions,
    hopper,
    movement,
    tensor_cores,
    warps,
)
from tests.support.ptx.control_flow import meeting_points
from tests.support.ptx.errors import Stuck, UnknownInstruction
from tests.support.ptx.machine import Machine, Step, where
from tests.support.ptx.parsing import Constant, Instruction, Kernel, parse


def _fence(instruction: Instruction) -> Step:
    if instruction.opcode != "fence.proxy.async.shared::cta":
        raise UnknownInstruction(where(instruction))
    return lambda m: m.races.fence()


def _dependency(instruction: Instruction) -> Step:
    """After `wait`, what earlier launches wrote is there; what they still read may be overwritten."""
    what = where(instruction)
    if instruction.opcode not in ("griddepcontrol.wait", "griddepcontrol.launch_dependents"):
        raise UnknownInstruction(what)

    def step(m: Machine) -> None:
        m.expect_all(what)
        if instruction.opcode == "griddepcontrol.wait":
            m.memory.unsettled = frozenset()

    return step


def _barrier(instruction: Instruction) -> Step:
    """Only all threads of a block together may pass: a GPU would wait for the others."""
    what = where(instruction)
    if instruction.opcode == "bar.warp.sync":
        return lambda m: None
    if instruction.opcode not in ("bar.sync", "barrier.sync") or instruction.operands != (Constant(0),):
        raise UnknownInstruction(what)

    def step(m: Machine) -> None:
        if m.active is None:
            m.races.barrier(None)
            return
        came, alive = (mask.reshape(-1, m.threads) for mask in (m.active, m.alive))
        blocks = came.any(1)
        missing = (alive & ~came)[blocks]
        if missing.any():
            raise Stuck(f"{what}: {int(missing[missing.any(1)][0].sum())} threads of the block are elsewhere")
        m.races.barrier(blocks)

    return step


RULES: dict[str, Callable[[Instruction], Step]] = {
    **arithmetic.RULES,
    **approximations.RULES,
    **conversions.RULES,
    **movement.RULES,
    **warps.RULES,
    **tensor_cores.RULES,
    **hopper.RULES,
    **blackwell.RULES,
    "fence": _fence,
    "griddepcontrol": _dependency,
    "bar": _barrier,
    "barrier": _barrier,
}


class Program:
    """A kernel, ready to run: a step per instruction, None for those that decide where to go on."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.steps = [_step(each) for each in kernel.instructions]
        self.meetings = meeting_points(kernel.instructions)

    def run(self, machine: Machine) -> None:
        self._follow(machine, 0, len(self.steps))

    def _follow(self, m: Machine, at: int, stop: int) -> None:
        """Run the active threads from `at` to `stop`."""
        steps = self.steps
        while at != stop:
            step = steps[at]
            if step is not None:
                step(m)
                at += 1
            else:
                at = self._go(m, at)

    def _go(self, m: Machine, at: int) -> int:
        """Past a branch, with both of its sides run if threads part."""
        instruction = self.kernel.instructions[at]
        if instruction.parts[0] != "bra":
            if instruction.guard is not None:
                raise UnknownInstruction(f"{where(instruction)}: under a condition")
            m.alive = np.zeros(m.lanes, bool) if m.active is None else m.alive & ~m.active
            return len(self.steps)
        if instruction.guard is None:
            return instruction.target
        holds = _condition(instruction)(m)
        if len(holds) == 1:
            return instruction.target if holds[0] else at + 1
        before = m.active
        taken, left = (holds, ~holds) if before is None else (holds & before, ~holds & before)
        if not left.any():
            return instruction.target
        if not taken.any():
            return at + 1
        meeting = self.meetings[at]
        for start, mask in ((at + 1, left), (instruction.target, taken)):
            m.active = mask
            self._follow(m, start, meeting)
        m.active = before
        if not m.alive.all():
            m.active = m.alive if before is None else before & m.alive
            if not m.active.any():
                return len(self.steps)
        return meeting


@lru_cache(maxsize=64)
def program(text: str, name: str) -> Program:
    return Program(parse(text, name))


def _step(instruction: Instruction) -> Step | None:
    if instruction.parts[0] in ("bra", "ret", "exit"):
        return None
    rule = RULES.get(instruction.parts[0])
    if rule is None:
        raise UnknownInstruction(where(instruction))
    try:
        step = rule(instruction)
    except (IndexError, ValueError, AssertionError, AttributeError, KeyError) as error:
        raise UnknownInstruction(f"{where(instruction)}: {error!r}") from error
    return step if instruction.guard is None else _guarded(instruction, step)


def _guarded(instruction: Instruction, step: Step) -> Step:
    condition = _condition(instruction)

    def run(m: Machine) -> None:
        holds = condition(m)
        if len(holds) == 1:
            if holds[0]:
                step(m)
            return
        outer = m.active
        mask = holds if outer is None else holds & outer
        if not mask.any():
            return
        m.active = None if mask.all() else mask
        try:
            step(m)
        finally:
            m.active = outer

    return run


def _condition(instruction: Instruction) -> Callable[[Machine], np.ndarray]:
    assert instruction.guard is not None
    index = instruction.guard.index
    if instruction.negated:
        return lambda m: ~m.registers[index]
    return lambda m: m.registers[index]
