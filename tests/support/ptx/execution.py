"""Runs a kernel's instructions. All threads go together while their branches agree; where they part, those that are
furthest behind go first, and join the others where they meet. Barriers and mbarriers hold threads until their
condition is met."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tests.support.ptx import approximations, arithmetic, conversions, movement, tensor_cores
from tests.support.ptx.errors import Stuck, UnknownInstruction
from tests.support.ptx.machine import Machine, Step, where
from tests.support.ptx.operands import reading
from tests.support.ptx.parsing import Constant, Instruction, Kernel, parse

NOTHING = ("fence.proxy.async.shared::cta",)
Mask = np.ndarray | None  # None: all threads


def _fence(instruction: Instruction) -> Step:
    if instruction.opcode == "fence.proxy.async.shared::cta":
        return lambda m: m.races.fence()
    raise UnknownInstruction(where(instruction))


RULES: dict[str, Callable[[Instruction], Step]] = {
    **arithmetic.RULES,
    **approximations.RULES,
    **conversions.RULES,
    **movement.RULES,
    **tensor_cores.RULES,
    "fence": _fence,
}
# Handled by the scheduler, not as steps.
CONTROL = ("bra", "ret", "exit", "bar", "barrier", "mbarrier.try_wait")


class Program:
    """A kernel, ready to run: a step per instruction, None where the scheduler decides."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.steps: list[Step | None] = [_step(each) for each in kernel.instructions]


@lru_cache(maxsize=64)
def program(text: str, name: str) -> Program:
    return Program(parse(text, name))


def _step(instruction: Instruction) -> Step | None:
    if instruction.parts[0] in CONTROL or ".".join(instruction.parts[:2]) in CONTROL:
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


class Scheduler:
    def __init__(self, loaded: Program, machine: Machine) -> None:
        self._steps = loaded.steps
        self._instructions = loaded.kernel.instructions
        self._machine = machine
        self._ready: dict[int, Mask] = {0: None}
        self._held: list[tuple[int, np.ndarray]] = []  # at a barrier: where they go on, who
        self._asleep: list[tuple[int, np.ndarray]] = []  # at an mbarrier
        self._alive = np.ones(machine.lanes, bool)

    def run(self) -> None:
        while self._ready:
            at = min(self._ready)
            self._follow(at, self._ready.pop(at))
            if not self._ready:
                self._wake()
        if self._held or self._asleep:
            at, mask = (self._held or self._asleep)[0]
            instruction = self._instructions[at - 1 if self._held else at]
            lane = int(np.flatnonzero(mask)[0]) % self._machine.threads
            raise Stuck(f"{where(instruction)}: thread {lane} waits, and the others never come")

    def _follow(self, at: int, mask: Mask) -> None:
        """Run one set of threads until it parts, waits, ends or meets another."""
        m, steps, ready = self._machine, self._steps, self._ready
        m.active = mask
        while True:
            if ready:
                if at in ready:
                    m.active = self._join(m.active, ready.pop(at))
                elif min(ready) < at:
                    ready[at] = m.active
                    return
            step = steps[at]
            if step is not None:
                step(m)
                at += 1
                continue
            following = self._control(at, self._instructions[at])
            if following is None:
                return
            at = following

    def _control(self, at: int, instruction: Instruction) -> int | None:
        """Where the threads go on; None if that is in `ready`, or nowhere."""
        kind = instruction.parts[0]
        if kind == "bra":
            return self._branch(at, instruction)
        if kind in ("ret", "exit"):
            if instruction.guard is not None:
                raise UnknownInstruction(f"{where(instruction)}: under a condition")
            self._end(self._machine.active)
            return None
        if kind == "mbarrier":
            return self._await(at, instruction)
        return self._barrier(at, instruction)

    def _branch(self, at: int, instruction: Instruction) -> int | None:
        if instruction.guard is None:
            return instruction.target
        m = self._machine
        holds = _condition(instruction)(m)
        if len(holds) == 1:
            return instruction.target if holds[0] else at + 1
        taken = holds if m.active is None else holds & m.active
        left = ~holds if m.active is None else ~holds & m.active
        if not left.any():
            return instruction.target
        if not taken.any():
            return at + 1
        self._add(instruction.target, taken)
        self._add(at + 1, left)
        return None

    def _barrier(self, at: int, instruction: Instruction) -> int | None:
        what = where(instruction)
        if instruction.opcode == "bar.warp.sync":
            return at + 1
        number = instruction.operands[0]
        if instruction.opcode not in ("bar.sync", "barrier.sync") or number != Constant(0):
            raise UnknownInstruction(what)
        if len(instruction.operands) > 1 or instruction.guard is not None:
            raise UnknownInstruction(what)
        m = self._machine
        if m.active is None and self._alive.all():
            m.races.barrier(None)
            return at + 1
        self._held.append((at + 1, self._mask(m.active)))
        self._release()
        return None

    def _release(self) -> None:
        """Blocks all of whose threads have come go on."""
        m = self._machine
        came = np.zeros(m.lanes, bool)
        for _, mask in self._held:
            came |= mask
        missing = (self._alive & ~came).reshape(-1, m.threads).any(1)
        complete = ~missing & came.reshape(-1, m.threads).any(1)
        if not complete.any():
            return
        m.races.barrier(complete)
        lanes = np.repeat(complete, m.threads)
        held, self._held = self._held, []
        for at, mask in held:
            if (mask & lanes).any():
                self._add(at, mask & lanes)
            if (mask & ~lanes).any():
                self._held.append((at, mask & ~lanes))

    def _await(self, at: int, instruction: Instruction) -> int | None:
        """mbarrier.try_wait: those whose phase is complete go on with `true`; the others sleep."""
        from tests.support.ptx.blackwell import completed  # noqa: PLC0415

        m = self._machine
        done = completed(m, instruction)
        mask = self._mask(m.active)
        if (mask & ~done).any():
            self._asleep.append((at, mask & ~done))
            if not (mask & done).any():
                return None
            m.active = mask & done
        m.put(instruction.operands[0].index, np.ones(1, bool))  # type: ignore[union-attr]
        return at + 1

    def _wake(self) -> None:
        """Sleepers look again once nobody else can run; if none of them finds its phase complete, that is the end."""
        asleep, self._asleep = self._asleep, []
        for at, mask in asleep:
            self._add(at, mask)
        if not asleep:
            return
        at = min(self._ready)
        before = {key: self._mask(value).copy() for key, value in self._ready.items()}
        ready, self._ready = self._ready, {}
        for key in sorted(ready):
            self._machine.active = ready[key]
            following = self._control(key, self._instructions[key])
            if following is not None:
                self._add(following, self._mask(self._machine.active))
        del at, before

    def _end(self, mask: Mask) -> None:
        self._alive &= ~self._mask(mask)
        if self._held:
            self._release()

    def _add(self, at: int, mask: np.ndarray) -> None:
        self._ready[at] = self._join(mask, self._ready[at]) if at in self._ready else mask

    def _join(self, one: Mask, other: Mask) -> Mask:
        joined = self._mask(one) | self._mask(other)
        return None if joined.all() else joined

    def _mask(self, mask: Mask) -> np.ndarray:
        return np.ones(self._machine.lanes, bool) if mask is None else mask


__all__ = ["Program", "Scheduler", "program", "reading"]
