# SPDX-License-Identifier: Apache-2.0
"""`python -m fused_mlp.kernels.cuda.check`: compiles every row of the tile table for every architecture that can
select it, to real machine code, without a GPU. Fails on a register spill, on too much shared memory, and on
half precision that does not reach the tensor cores. Prints a table, writes JSON, counts launches beside
eager's."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fused_mlp.kernels.cuda.check.compilation import Resources, compile_job, triton_version
from fused_mlp.kernels.cuda.check.jobs import Job, jobs
from fused_mlp.kernels.cuda.check.models import EXAMPLES
from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES
from fused_mlp.kernels.cuda.planning.forward import plan_forward
from fused_mlp.kernels.cuda.planning.launch_counts import eager_launches
from fused_mlp.kernels.cuda.planning.rule import tile_by_rule

TENSOR_MEMORY_COLUMNS = 512  # what a multiprocessor of sm_100 has
BY_CAPABILITY = {entry.capability: entry for entry in ARCHITECTURES}


def compile_all(work: Sequence[Job], processes: int, console: Console) -> list[Resources]:
    """Spawned processes: Triton's compiler state does not survive a fork."""
    results: dict[Job, Resources] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        task = progress.add_task("compiling", total=len(work))
        # The slowest first (wide tiles), so that no process is left alone with them at the end.
        futures = {pool.submit(compile_job, job): job for job in sorted(work, key=lambda job: -job.weight)}
        for future in as_completed(futures):
            results[futures[future]] = future.result()
            progress.advance(task)
            if not console.is_terminal and len(results) % 50 == 0:  # a log, where bars do not show
                console.print(f"compiled {len(results)} of {len(work)}")
    return [results[job] for job in work]


def faults_of(job: Job, resources: Resources) -> list[str]:
    limit = BY_CAPABILITY[job.capability].shared_bytes
    faults: list[str] = []
    if resources.error:
        faults.append(f"does not compile: {resources.error}")
    if resources.spilled_bytes:
        faults.append(f"spills {resources.spilled_bytes} bytes")
    if resources.shared_bytes > limit:
        faults.append(f"needs {resources.shared_bytes} bytes of shared memory, {limit} allowed")
    if resources.tensor_memory_columns > TENSOR_MEMORY_COLUMNS:
        faults.append(f"needs {resources.tensor_memory_columns} columns of tensor memory")
    if job.wants_tensor_cores and not resources.error and not resources.tensor_core_instructions:
        faults.append("has no tensor-core instruction")
    return faults


def resource_table(work: Sequence[Job], results: Sequence[Resources]) -> Table:
    table = Table(
        "arch", "tile", "width", "precision", "use", title="Resources by ptxas", header_style="bold"
    )
    for heading in (
        "warps",
        "stages",
        "registers",
        "spill B",
        "shared KiB",
        "of",
        "tensor-core instructions",
    ):
        table.add_column(heading, justify="right" if heading != "tensor-core instructions" else "left")
    for job, result in zip(work, results, strict=True):
        entry = BY_CAPABILITY[job.capability]
        faults = faults_of(job, result)
        found = ", ".join(f"{count} {name}" for name, count in result.tensor_core_instructions.items())
        table.add_row(
            entry.name,
            job.label,
            str(job.width or "any"),
            job.precision,
            job.use,
            str(job.plan.warps),
            str(job.plan.stages),
            str(result.registers),
            str(result.spilled_bytes),
            f"{result.shared_bytes / 1024:.1f}",
            f"{entry.shared_bytes // 1024}",
            "; ".join(faults) or found or "-",
            style="red" if faults else None,
        )
    return table


def launch_rows() -> list[dict[str, object]]:
    """Launches per forward of the example models, by the rule at 64 rows on sm_80, beside eager's."""
    rows: list[dict[str, object]] = []
    for spec in EXAMPLES:
        tile = tile_by_rule(spec, ARCHITECTURES[0], rows=64)
        launches = plan_forward(spec, tile).max_launches
        rows.append(
            {
                "model": f"{spec.summary()} {spec.dtype}",
                "strategy": tile.label,
                "launches": launches,
                "eager": eager_launches(spec),
            }
        )
    return rows


def launch_table(rows: Sequence[dict[str, object]]) -> Table:
    table = Table(
        "model", "strategy", "launches", "eager", title="Kernel launches per forward", header_style="bold"
    )
    for row in rows:
        table.add_row(*(escape(str(row[key])) for key in ("model", "strategy", "launches", "eager")))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fused_mlp.kernels.cuda.check", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="the heaviest use of a few tiles on each architecture"
    )
    parser.add_argument(
        "--arch", type=int, action="append", help="only this architecture, such as 90; repeatable"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("build/cuda-check.json"), help="where the report goes"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    work = [
        job for job in jobs(quick=options.quick) if options.arch is None or job.capability in options.arch
    ]
    if not work:
        console.print(f"--arch: expected some of {sorted(BY_CAPABILITY)}, got {options.arch}")
        return 2

    began = time.monotonic()
    # A directory of its own: a cached binary would come without its resource report.
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TRITON_CACHE_DIR"] = directory
        results = compile_all(work, options.processes, console)
    seconds = time.monotonic() - began

    console.print(resource_table(work, results))
    launches = launch_rows()
    console.print(launch_table(launches))
    failed = [
        (job, faults) for job, result in zip(work, results, strict=True) if (faults := faults_of(job, result))
    ]
    report = {
        "triton": triton_version(),
        "seconds": round(seconds, 1),
        "compiled": len(work),
        "failed": len(failed),
        "kernels": [
            {**job.as_dict(), **result.as_dict(), "faults": faults_of(job, result)}
            for job, result in zip(work, results, strict=True)
        ],
        "launches": launches,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    for job, faults in failed:
        console.print(f"[red]sm_{job.capability} {job.label} {job.precision} {job.use}: {'; '.join(faults)}")
    console.print(
        f"{len(work)} binaries in {seconds:.0f} s, {len(failed)} failed; "
        f"at most {max(r.registers for r in results)} registers, "
        f"{max(r.shared_bytes for r in results) / 1024:.0f} KiB of shared memory; report: {options.json}"
    )
    return 1 if failed else 0
