# SPDX-License-Identifier: Apache-2.0
"""A profile as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fused_mlp.kernels.profile import Difference, Profile, Sweep
from fused_mlp.service.ab.report import not_valid
from fused_mlp.service.reports.profile import wording
from fused_mlp.service.reports.terminal import VARIANT_STYLES, note_lines, plain_table

_LEFT = ("variant", "bound by", "launched", "guessed", "step", "what", "")


def profile_view(profile: Profile, differences: Sequence[Difference] = ()) -> RenderableType:
    parts: list[RenderableType] = [
        Text(f"{profile.model}: {wording.model(profile)}", "bold"),
        *([Text(profile.compared)] if profile.compared else []),
        Text(f"{wording.setting(profile)}; {wording.limits(profile)}", "dim"),
        Text(""),
        _times(profile),
        Text(""),
        _operators(profile),
    ]
    for name, reason in profile.failures.items():
        parts.append(Text(f"{name}: not profiled: {reason}", "red"))
    if differences:
        parts += [Text(""), _expectations(differences)]
    if profile.steps:
        parts += [Text(""), _steps(profile)]
        if wording.left_out(profile):
            parts.append(Text(wording.left_out(profile), "dim"))
    parts.append(Text(""))
    parts += [Text(f"• {sentence}") for sentence in profile.advice]
    parts += note_lines(profile.notes)
    if profile.problems:
        parts += [Text(""), Text(not_valid(profile.problems), "bold red")]
    return Group(*parts)


def _times(profile: Profile) -> Table:
    device = any(point.counts.device_us is not None for point in profile.points)
    titles = ["batch", "variant", "us", "speed-up", "CPU us", *(["device us"] if device else [])]
    table = _table(*titles, "call us", "overhead", "bound by")
    for batch in profile.batches:
        points = [point for point in profile.points if point.batch == batch]
        for point in points:
            cells = [
                str(batch) if point is points[0] else "",
                point.variant,
                wording.microseconds(point.time_us),
                f"{point.speedup:.2f}x",
                wording.microseconds(point.cpu_us),
                *([wording.microseconds(point.counts.device_us)] if device else []),
                wording.microseconds(point.regime.overhead_us),
                f"{point.overhead_share:.0%}",
                wording.regime(point),
            ]
            alone = point.kernel_us is not None
            ends = point is points[-1]
            table.add_row(*cells, style=VARIANT_STYLES[point.variant], end_section=ends and not alone)
            if point.kernel_us is not None:
                speedup = point.speedup * point.time_us / point.kernel_us
                row = ["", "kernel alone", wording.microseconds(point.kernel_us), f"{speedup:.2f}x"]
                table.add_row(*row, style=VARIANT_STYLES[point.variant], end_section=ends)
    return table


def _operators(profile: Profile) -> Table:
    table = _table("batch", "variant", "ops", "no work", "launches", "allocated", "moved", "launched")
    for batch in profile.batches:
        points = [point for point in profile.points if point.batch == batch]
        for point in points:
            counts = point.counts
            table.add_row(
                str(batch) if point is points[0] else "",
                point.variant,
                str(counts.dispatched),
                str(counts.bookkeeping),
                str(counts.launched),
                wording.size(counts.bytes_allocated),
                wording.size(counts.bytes_moved, counts.bytes_moved_known),
                wording.counted(counts.launches, longest=16),
                style=VARIANT_STYLES[point.variant],
                end_section=point is points[-1],
            )
    return table


def _steps(profile: Profile) -> Table:
    table = _table("batch", "step", "what", "flops", "weights", "limit us", "fused us")
    for batch in profile.batches:
        steps = wording.costliest(profile, batch)
        for step in steps:
            table.add_row(
                str(batch) if step is steps[0] else "",
                wording.cut(step.name, 24),
                wording.cut(step.what, 18),
                wording.count(step.flops),
                wording.weights(profile, step),
                wording.microseconds(step.limit_us),
                wording.microseconds(step.fused_us),
                end_section=step is steps[-1],
            )
    return table


def _expectations(differences: Sequence[Difference]) -> Table:
    table = _table("batch", "guessed", "expected", "found", "")
    for each in differences:
        mark = Text("as guessed", "green") if each.right else Text("differs", "bold red")
        table.add_row(
            str(each.batch), f"{each.variant} {each.what}", str(each.expected), str(each.found), mark
        )
    return table


def sweep_view(sweep: Sweep) -> RenderableType:
    """Speed-up over eager. The page shows it in colour."""
    table = _table("width \\ batch", *map(str, sweep.batches))
    found = {(cell.width, cell.batch): cell for cell in sweep.cells}
    for width in sweep.widths:
        cells = [found.get((width, batch)) for batch in sweep.batches]
        table.add_row(str(width), *("" if cell is None else wording.sweep_cell(cell) for cell in cells))
    parts: list[RenderableType] = [
        Text(f"speed-up of fused over eager, {wording.sweep_title(sweep)}", "bold"),
        table,
    ]
    if any(cell.busy for cell in sweep.cells):
        parts.append(Text(wording.BUSY, "yellow"))
    return Group(*parts)


def _table(*columns: str) -> Table:
    table = plain_table(*columns, left=_LEFT)
    table.collapse_padding = True  # to fit 80 columns
    return table
