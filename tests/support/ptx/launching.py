# SPDX-License-Identifier: Apache-2.0
"""One launch: `run` is what a driver calls. Blocks run in a random order, many side by side."""

from __future__ import annotations

import numpy as np

from tests.support.ptx.errors import PtxError
from tests.support.ptx.execution import program
from tests.support.ptx.machine import WARP, Machine
from tests.support.ptx.memory import Memory
from tests.support.ptx.parsing import Kernel

SIDE_BY_SIDE = 16384  # threads: the registers of more do not stay in a core's cache


def run(
    ptx: str,
    kernel_name: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    parameters: bytes,
    memory: Memory,
    *,
    seed: int = 0,
    unsettled: frozenset[int] = frozenset(),
) -> None:
    """Execute the kernel on `memory`, of which launches before may still use what is `unsettled`. parameters: as the
    driver passes them, each at its own alignment; shorter than declared if the rest is not read. Raises a
    PtxError where the kernel does what it must not."""
    loaded = program(ptx, kernel_name)
    kernel = loaded.kernel
    threads = block[0] * block[1] * block[2]
    if threads % WARP or not 0 < threads <= 1024:
        raise PtxError(f"{kernel_name}: expected whole warps, at most 1024 threads, got a block of {block}")
    if kernel.threads and threads != kernel.threads:
        raise PtxError(f"{kernel_name}: expected blocks of {kernel.threads} threads, got {threads}")
    names, static, local, constants = _place(kernel, memory)
    passed = np.zeros(kernel.parameter_bytes, np.uint8)
    passed[: len(parameters)] = np.frombuffer(parameters, np.uint8)[: len(passed)]
    order = np.random.default_rng(seed).permutation(grid[0] * grid[1] * grid[2])
    together = max(SIDE_BY_SIDE // threads, 1)
    try:
        with np.errstate(all="ignore"):
            for start in range(0, len(order), together):
                blocks = np.sort(order[start : start + together])
                machine = Machine(
                    kernel, memory, static + shared_bytes, local, names, passed, blocks, grid, block
                )
                memory.unsettled = unsettled
                loaded.run(machine)
    finally:
        memory.unsettled = frozenset()
        for address in constants:
            memory.remove(address)


def _place(kernel: Kernel, memory: Memory) -> tuple[dict[str, int], int, int, list[int]]:
    """Where variables are; how much shared and local memory they take; what was put into global memory for them."""
    names: dict[str, int] = {}
    sizes = {"shared": 0, "local": 0}
    constants: list[int] = []
    # What is sized by the launch comes after what is not.
    for variable in sorted(kernel.variables, key=lambda each: each.space == "shared" and each.size == 0):
        if variable.space in sizes:
            at = -(-sizes[variable.space] // variable.align) * variable.align
            names[variable.name] = at
            sizes[variable.space] = at + variable.size
        else:
            data = np.zeros(-(-max(variable.size, 1) // 16) * 16, np.uint8)
            data[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
            # Aligned to 16 bytes by being an allocation of its own.
            names[variable.name] = memory.add(data)
            constants.append(names[variable.name])
    dynamic = [each for each in kernel.variables if each.space == "shared" and each.size == 0]
    aligned = -(-sizes["shared"] // 16) * 16 if dynamic else sizes["shared"]
    return names | {each.name: aligned for each in dynamic}, aligned, sizes["local"], constants
