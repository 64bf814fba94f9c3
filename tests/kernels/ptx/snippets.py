# SPDX-License-Identifier: Apache-2.0
"""Small kernels written for one instruction, and their execution."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from tests.support.ptx import Memory, run

TEMPLATE = """
.version 8.7
.target sm_100a
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry snippet({parameters})
{{
    .reg .pred %p<64>;
    .reg .b16 %h<64>;
    .reg .b32 %r<256>;
    .reg .b64 %d<64>;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
{loads}
{body}
    ret;
}}
"""


def execute(body: str, *arrays: np.ndarray, threads: int = 32, blocks: int = 1, shared: int = 0) -> None:
    """Run the body with the addresses of the arrays in %d0, %d1, ...; %r0 is the thread, %r1 the block."""
    memory = Memory()
    addresses = [memory.add(array) for array in arrays]
    parameters = ", ".join(f".param .u64 p{index}" for index in range(len(arrays)))
    loads = "\n".join(f"    ld.param.u64 %d{index}, [p{index}];" for index in range(len(arrays)))
    ptx = TEMPLATE.format(parameters=parameters, loads=loads, body=body)
    passed = struct.pack(f"<{len(arrays)}Q", *addresses)
    run(ptx, "snippet", (blocks, 1, 1), (threads, 1, 1), shared, passed, memory)


REGISTERS = {1: "%h", 2: "%h", 4: "%r", 8: "%d"}
FIRST = {"%h": 10, "%r": 10, "%d": 20}


def compute(opcode: str, operands: Sequence[np.ndarray | str], kind: type) -> np.ndarray:
    """The result of one instruction per thread. Operands: one element per thread, or a constant in PTX."""
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    count = len(arrays[0])
    result = np.zeros(count, kind)
    lines, names = [], []
    for index, operand in enumerate(operands):
        if isinstance(operand, str):
            names.append(operand)
            continue
        at = next(i for i, array in enumerate(arrays) if array is operand)
        prefix = REGISTERS[operand.itemsize]
        names.append(f"{prefix}{FIRST[prefix] + index}")
        lines += [f"mad.wide.u32 %d10, %r0, {operand.itemsize}, %d{at};"]
        lines += [f"ld.global.b{8 * operand.itemsize} {names[-1]}, [%d10];"]
    target = f"{REGISTERS[result.itemsize]}9"
    lines += [f"{opcode} {target}, {', '.join(names)};"]
    lines += [f"mad.wide.u32 %d10, %r0, {result.itemsize}, %d{len(arrays)};"]
    lines += [f"st.global.b{8 * result.itemsize} [%d10], {target};"]
    execute("\n".join(lines), *arrays, result, threads=count)
    return result


def warp_registers(name: str, at: int, array: int, count: int) -> str:
    """Load %name{at}... from `array`, (threads, count) words."""
    lines = [f"mad.wide.u32 %d30, %r0, {4 * count}, %d{array};"]
    lines += [f"ld.global.b32 %{name}{at + index}, [%d30+{4 * index}];" for index in range(count)]
    return "\n".join(lines)


def store_registers(name: str, at: int, array: int, count: int) -> str:
    lines = [f"mad.wide.u32 %d31, %r0, {4 * count}, %d{array};"]
    lines += [f"st.global.b32 [%d31+{4 * index}], %{name}{at + index};" for index in range(count)]
    return "\n".join(lines)


def vector(name: str, at: int, count: int) -> str:
    return "{" + ", ".join(f"%{name}{at + index}" for index in range(count)) + "}"
