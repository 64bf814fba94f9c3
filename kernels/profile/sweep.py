# SPDX-License-Identifier: Apache-2.0
"""The speed-up of fused over eager for every batch size and width. Results are saved as they are measured, so that an
interrupted sweep continues where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from fused_mlp.kernels.profile.machine import describe_machine
from fused_mlp.kernels.profile.results import ProfileError
from fused_mlp.kernels.profile.shapes import (
    check_size,
    random_rows,
    reduced_alike,
    resized,
    with_random_weights,
)
from fused_mlp.kernels.profile.timing import Time, time_calls
from fused_mlp.kernels.profile.variants import ProfiledVariant
from fused_mlp.models import Mlp, MlpSpec

WIDTHS = (32, 64, 128, 256, 512, 1024)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

_ATTEMPTS = 3
_PLAUSIBLE = 16.0  # more than any of our shapes gains or loses; a larger factor must be measured twice


@dataclass(frozen=True)
class SweepCell:
    batch: int
    width: int
    eager_us: float
    fused_us: float
    busy: bool = False  # other processes used the CPU: the times mean nothing and are not saved

    @property
    def speedup(self) -> float:
        return self.eager_us / self.fused_us


@dataclass(frozen=True)
class Sweep:
    """One program in several widths, each with that many features in every value."""

    model: str  # its summary, in its own widths
    threads: int
    cells: tuple[SweepCell, ...]
    precision: str = "float32"  # of the fused weights

    @property
    def batches(self) -> list[int]:
        return sorted({cell.batch for cell in self.cells})

    @property
    def widths(self) -> list[int]:
        return sorted({cell.width for cell in self.cells})


def run_sweep(
    path: Path,
    mlp: Mlp,
    *,
    threads: int = 1,
    batches: Sequence[int] = BATCHES,
    widths: Sequence[int] = WIDTHS,
    budget_s: float = 0.1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Sweep:
    """`progress(done, total)` is called after each cell. Cells that `path` has already are not measured again. Cells
    that a busy machine prevented are marked `busy` and not saved."""
    conditions: dict[str, object] = {
        "model": mlp.spec.summary(),
        "precision": mlp.precision,
        "threads": threads,
        "torch": str(torch.__version__),
        "machine": describe_machine(),
    }
    kept = _read(path, conditions)
    wanted = [(batch, width) for width in widths for batch in batches]
    done = [cell for cell in kept if (cell.batch, cell.width) in wanted]
    missing = [pair for pair in wanted if pair not in {(cell.batch, cell.width) for cell in done}]
    progress(len(done), len(wanted))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        built: dict[int, tuple[Mlp, ProfiledVariant, ProfiledVariant]] = {}
        for batch, width in missing:
            if width not in built:
                same = reduced_alike(with_random_weights(equally_wide(mlp.spec, width)), mlp)
                built = {
                    width: (
                        same,
                        ProfiledVariant("eager", same, "cpu", threads),
                        ProfiledVariant("fused", same, "cpu", threads),
                    )
                }
            same, eager, fused = built[width]
            x = random_rows(same.spec, batch)
            calls = {"eager": eager.bind(x), "fused": fused.bind(x)}
            done.append(_measured(batch, width, calls, budget_s))
            others = [cell for cell in kept if cell not in done]
            _write(path, conditions, [*others, *(cell for cell in done if not cell.busy)])
            progress(len(done), len(wanted))
    finally:
        torch.set_num_threads(before)
    return Sweep(mlp.spec.summary(), threads, tuple(done), mlp.precision)


def equally_wide(spec: MlpSpec, width: int) -> MlpSpec:
    """The same steps with `width` features in every value; ProfileError if its weights do not fit into memory."""
    same = resized(spec, lambda _: width)
    check_size(same)
    return same


def _measured(batch: int, width: int, calls: dict[str, Callable[[], object]], budget_s: float) -> SweepCell:
    """Up to three attempts while the machine is busy. Returns the best times."""
    attempts: list[dict[str, Time]] = []
    while True:
        attempts.append(time_calls(calls, budget_s))
        best = {name: min((each[name] for each in attempts), key=lambda time: time.us) for name in calls}
        cell = SweepCell(batch, width, best["eager"].us, best["fused"].us)
        plausible = 1 / _PLAUSIBLE < cell.speedup < _PLAUSIBLE
        repeated = len(attempts) > 1 and all(
            attempts[-1][name].agrees_with(attempts[-2][name]) for name in calls
        )
        if not any(time.waited for time in best.values()) and (plausible or repeated):
            return cell
        if len(attempts) == _ATTEMPTS:
            return replace(cell, busy=True)


def _read(path: Path, conditions: dict[str, object]) -> list[SweepCell]:
    """No cells if there is no file or it was measured under other conditions."""
    try:
        stored = json.loads(path.read_text())
        cells = [SweepCell(**cell) for cell in stored["cells"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError(
            f"{path}: expected the results of a sweep, got something else ({type(error).__name__}); remove it"
        ) from None
    return cells if stored.get("conditions") == conditions else []


def _write(path: Path, conditions: dict[str, object], cells: Sequence[SweepCell]) -> None:
    """Atomic: an interrupted write does not lose earlier results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(
        json.dumps({"conditions": conditions, "cells": [asdict(cell) for cell in cells]}, indent=1)
    )
    temporary.replace(path)
