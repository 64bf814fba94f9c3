# SPDX-License-Identifier: Apache-2.0
"""Compiles one launch plan to machine code for an architecture and reads what it costs: ptxas' own report, and the
tensor-core instructions that it was given. Runs in the worker processes of the check, and imports no torch there."""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import triton

from fused_mlp.kernels.cuda.check.jobs import Job
from fused_mlp.kernels.cuda.device.compiling import compile_plan

# PTX instructions that only tensor cores execute: a warp's (sm_80 on), a warp group's (sm_90), the fifth generation's
# (sm_100). Disassembling the machine code instead would take a fifth of the check's time.
TENSOR_CORE = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma\.)[\w.:]*")
REGISTERS = re.compile(r"Used (\d+) registers")
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Resources:
    """The resources that one binary needs. `error` is set, and the rest zero, when it did not compile."""

    registers: int = 0
    max_registers: int | None = None  # as asked for
    local_bytes: int = 0  # what is spilled, and tables of functions such as cos
    spilled_bytes: int = 0
    shared_bytes: int = 0
    tensor_memory_columns: int = 0  # sm_100 only
    cubin_bytes: int = 0
    tensor_core_instructions: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0  # of this process, not of ptxas
    error: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def compile_job(job: Job) -> Resources:
    """With the options that a launcher would find: those that need the least local memory."""
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # not needed here
    found: list[Resources] = []
    for options in job.plan.options:
        found.append(_compile(job, options))
        if not found[-1].local_bytes:
            break
    return min(found, key=lambda resources: (bool(resources.error), resources.local_bytes))


def _compile(job: Job, options: Mapping[str, int | None]) -> Resources:
    """The compiler's failures are results too: one must not hide the others."""
    log = io.StringIO()
    began = time.process_time()
    try:
        with contextlib.redirect_stdout(log):  # where Triton prints the report
            binary = compile_plan(job.plan, options, job.capability)
    except Exception as error:
        return Resources(error=(str(error).strip().splitlines() or [type(error).__name__])[-1])
    registers, memory = REGISTERS.search(log.getvalue()), MEMORY.search(log.getvalue())
    if registers is None or memory is None:
        return Resources(error=f"no resource report from ptxas in {log.getvalue()[:200]!r}")
    return Resources(
        registers=int(registers[1]),
        max_registers=options["maxnreg"],
        local_bytes=int(memory[1]),
        spilled_bytes=max(int(memory[2]), int(memory[3])),
        shared_bytes=binary.metadata.shared,
        tensor_memory_columns=binary.metadata.tmem_size or 0,
        cubin_bytes=len(binary.asm["cubin"]),
        tensor_core_instructions=dict(Counter(TENSOR_CORE.findall(binary.asm["ptx"])).most_common(2)),
        seconds=round(time.process_time() - began, 2),
    )


def triton_version() -> str:
    return str(triton.__version__)
