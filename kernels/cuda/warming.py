# SPDX-License-Identifier: Apache-2.0
"""Fills Triton's cache with the kernels that models may need on an architecture, on a machine that need not have a GPU.
A server that finds the cache compiles nothing. Imports triton in its worker processes only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from pathlib import Path

from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES, Architecture
from fused_mlp.kernels.cuda.planning.forward import plan_forward
from fused_mlp.kernels.cuda.planning.plans import LaunchPlan
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles
from fused_mlp.models import MlpSpec

Options = Mapping[str, int | None]


def find_architecture(name: str) -> Architecture:
    for entry in ARCHITECTURES:
        if entry.name == name:
            return entry
    raise ValueError(f"expected one of {', '.join(entry.name for entry in ARCHITECTURES)}, got {name!r}")


def plans_of(spec: MlpSpec, architecture: Architecture, tf32: bool) -> Iterator[tuple[LaunchPlan, Options]]:
    """Every binary that a load may compile. Which of a plan's options it keeps, only a GPU tells."""
    for tile in candidate_tiles(spec, architecture, tf32):
        for launch in plan_forward(spec, tile).launches:
            for options in launch.plan.options:
                yield launch.plan, options


def warm(
    specs: Iterable[MlpSpec],
    architecture: Architecture,
    directory: Path,
    *,
    tf32: bool = False,
    processes: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """How many binaries the directory holds for these models now."""
    work: dict[str, tuple[LaunchPlan, Options]] = {}
    for spec in specs:
        for plan, options in plans_of(spec, architecture, tf32):
            work.setdefault(repr((plan, options)), (plan, options))
    directory.mkdir(parents=True, exist_ok=True)
    with _workers(processes) as pool:
        futures = [
            pool.submit(_compile, plan, options, architecture.capability, str(directory))
            for plan, options in work.values()
        ]
        progress(0, len(futures))
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            progress(done, len(futures))
    return len(work)


@contextmanager
def _workers(processes: int) -> Iterator[ProcessPoolExecutor]:
    """An error or Ctrl-C in this process ends them at once: a compilation takes seconds, and many may be waiting."""
    before = active_children()
    # Spawned: Triton's compiler does not survive a fork.
    pool = ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_leave_ctrl_c_to_parent
    )
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in active_children():
            if child not in before:
                child.terminate()
        raise
    pool.shutdown()


def _leave_ctrl_c_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _compile(plan: LaunchPlan, options: Options, capability: int, directory: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = directory
    from fused_mlp.kernels.cuda.device.compiling import compile_plan  # noqa: PLC0415 - imports triton

    compile_plan(plan, options, capability)
