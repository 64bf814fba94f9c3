# SPDX-License-Identifier: Apache-2.0
"""Where threads that part at a branch meet again: its immediate post-dominator, the first instruction that every way
from the branch to the end of the kernel passes."""

from __future__ import annotations

import itertools

from tests.support.ptx.parsing import Instruction


def meeting_points(instructions: list[Instruction]) -> dict[int, int]:
    """By the position of each conditional branch. len(instructions) stands for the end."""
    end = len(instructions)
    starts = {0, end}
    for at, each in enumerate(instructions):
        if each.parts[0] in ("bra", "ret", "exit"):
            starts |= {at + 1} | ({each.target} if each.target >= 0 else set())
    ordered = sorted(starts)
    following = {
        start: _successors(instructions, stop - 1, end) for start, stop in itertools.pairwise(ordered)
    }
    after = _post_dominators(following, end)
    found: dict[int, int] = {}
    for start, stop in itertools.pairwise(ordered):
        if len(following[start]) > 1:
            found[stop - 1] = after[start]
    return found


def _successors(instructions: list[Instruction], last: int, end: int) -> list[int]:
    """Of the block that `last` ends."""
    instruction = instructions[last]
    kind = instruction.parts[0]
    if kind in ("ret", "exit"):
        return [end]
    if kind == "bra":
        return [instruction.target] if instruction.guard is None else [instruction.target, last + 1]
    return [last + 1]


def _post_dominators(following: dict[int, list[int]], end: int) -> dict[int, int]:
    """The iterative algorithm of Cooper, Harvey and Kennedy on the reversed graph."""
    before: dict[int, list[int]] = {block: [] for block in [*following, end]}
    for block, successors in following.items():
        for successor in successors:
            before[successor].append(block)
    order: list[int] = []
    seen, stack = {end}, [(end, iter(before[end]))]
    while stack:
        block, rest = stack[-1]
        step = next((each for each in rest if each not in seen), None)
        if step is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(step)
            stack.append((step, iter(before[step])))
    number = {block: index for index, block in enumerate(order)}
    after = {end: end}

    def common(one: int, other: int) -> int:
        while one != other:
            if number[one] < number[other]:
                one = after[one]
            else:
                other = after[other]
        return one

    changed = True
    while changed:
        changed = False
        for block in reversed(order[:-1]):
            known = [each for each in following[block] if each in after]
            best = known[0]
            for each in known[1:]:
                best = common(best, each)
            if after.get(block) != best:
                after[block] = best
                changed = True
    return {block: after.get(block, end) for block in following}
