"""Compiles one launch plan to machine code for an architecture and reads what it costs: ptxas' own report,
and the tensor-core instructions in nvdisasm's listing. Runs in the worker processes of the check."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fused_mlp.kernels.cuda.check.jobs import Job
from fused_mlp.kernels.cuda.planning.plans import LaunchPlan
from fused_mlp.kernels.cuda.running.triton_programs import KERNELS

# HMMA: a warp's (sm_80 on, and sm_120). HGMMA: a warp group's (sm_90). UTCHMMA: the fifth generation's
# (sm_100).
TENSOR_CORE = re.compile(r"\b(HMMA|HGMMA|UTC[A-Z]*MMA)\b[A-Z0-9.x]*")
REGISTERS = re.compile(r"Used (\d+) registers")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Resources:
    """What one binary needs. `error` is set, and the rest zero, when it did not compile."""

    registers: int = 0
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
    """The compiler's failures are results too: one must not hide the others."""
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # not needed here; disassembling is faster without
    log = io.StringIO()
    began = time.process_time()
    try:
        with contextlib.redirect_stdout(log):  # where Triton prints the report
            binary = compile_plan(job.plan, job.capability)
    except Exception as error:
        return Resources(error=(str(error).strip().splitlines() or [type(error).__name__])[-1])
    registers, spills = REGISTERS.search(log.getvalue()), SPILLS.search(log.getvalue())
    if registers is None or spills is None:
        return Resources(error=f"no resource report from ptxas in {log.getvalue()[:200]!r}")
    return Resources(
        registers=int(registers[1]),
        spilled_bytes=max(int(spills[1]), int(spills[2])),
        shared_bytes=binary.metadata.shared,
        tensor_memory_columns=binary.metadata.tmem_size or 0,
        cubin_bytes=len(binary.asm["cubin"]),
        # Half a second each, mostly nvdisasm's start: not for those that have none to show.
        tensor_core_instructions=tensor_core_instructions(binary.asm["cubin"])
        if job.wants_tensor_cores
        else {},
        seconds=round(time.process_time() - began, 2),
    )


def compile_plan(plan: LaunchPlan, capability: int) -> triton.compiler.CompiledKernel:
    """With the arguments' types as the launcher passes them: 16-byte aligned pointers, a 32-bit row count."""
    kernel = KERNELS[plan.kernel]
    names = [name for name in kernel.arg_names if name not in plan.constants]
    types = [f"*{element}" for element in plan.pointers] + ["i32"] * (len(names) - len(plan.pointers))
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(plan.constants, "constexpr")
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(len(plan.pointers))}
    return triton.compile(
        ASTSource(kernel, signature, dict(plan.constants), aligned),
        target=GPUTarget("cuda", capability, 32),
        options=plan.options,
    )


def tensor_core_instructions(cubin: bytes) -> dict[str, int]:
    """`{"HMMA.16816.F32": 64}`, counted in the disassembly."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", file.name]
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(Counter(match[0] for match in TENSOR_CORE.finditer(listing)).most_common(2))


def triton_version() -> str:
    return str(triton.__version__)
