# SPDX-License-Identifier: Apache-2.0
"""The plots of a profile: time over batch size, the parts of that time, and the map of a sweep."""

from __future__ import annotations

import math

from fused_mlp.kernels.profile import PROFILED, Point, Profile, Sweep
from fused_mlp.service.reports.profile import wording
from fused_mlp.service.reports.profile.wording import microseconds
from fused_mlp.service.reports.svg import (
    HEIGHT,
    WIDTH,
    Axis,
    columns,
    curve,
    dot,
    drawing,
    rectangle,
    rows,
    text,
)
from fused_mlp.service.reports.units import seconds_text


def time_plot(profile: Profile) -> str:
    """Both axes are logarithmic: equal factors are equal distances."""
    times = [point.time_us for point in profile.points]
    x = Axis(min(profile.batches), max(profile.batches), 58, WIDTH - 74, log=True)
    y = Axis(min(times) * 0.8, max(times) * 1.25, HEIGHT - 44, 12, log=True)
    parts = [
        columns(x, profile.batches, y, lambda batch: f"{batch:g}"),
        rows(y, y.ticks(), x, lambda us: seconds_text(us / 1e6)),
        text((x.start + x.end) / 2, HEIGHT - 6, "rows in the batch", "middle"),
    ]
    ends: list[tuple[float, str]] = []
    for variant in PROFILED:
        points = [point for point in profile.points if point.variant == variant]
        if points:
            parts.append(curve(variant, ((x(point.batch), y(point.time_us)) for point in points)))
            parts += [
                dot(
                    x(p.batch),
                    y(p.time_us),
                    variant,
                    f"{variant}, batch {p.batch}: {microseconds(p.time_us)} us",
                )
                for p in points
            ]
            ends.append((y(points[-1].time_us) + 4, variant))
    free = 0.0  # labels at the ends of the lines are moved apart where they would overlap
    for end, label in sorted(ends):
        parts.append(text(x.end + 10, max(end, free), label, kind=f"name {label}"))
        free = max(end, free) + 15
    return drawing(WIDTH, HEIGHT, "".join(parts), "time per forward pass over batch size")


def share_plot(profile: Profile) -> str:
    """For each batch size and variant: arithmetic at the limit of the machine, calling the layers, and the rest."""
    left, right, height = 122.0, 66.0, 19.0
    parts = []
    y = 6.0
    for batch in profile.batches:
        points = [point for point in profile.points if point.batch == batch]
        x = Axis(0, max(point.time_us for point in points), left, WIDTH - right)
        parts.append(text(0, y + 12, f"batch {batch}"))
        for point in points:
            parts.append(text(left - 8, y + 12, point.variant, "end", f"name {point.variant}"))
            parts += _bar(point, x, y, height - 4)
            parts.append(text(x(point.time_us) + 6, y + 12, f"{microseconds(point.time_us)} us", kind="ink"))
            y += height
        y += 9
    return drawing(WIDTH, y, "".join(parts), "where the time of a forward pass goes")


def _bar(point: Point, x: Axis, y: float, height: float) -> list[str]:
    arithmetic = min(point.time_us, point.regime.arithmetic_us)
    calling = min(point.time_us - arithmetic, point.regime.overhead_us)
    shares = (
        ("arithmetic at the limit", arithmetic, 1.0),
        ("calling", calling, 0.55),
        ("rest", point.time_us - arithmetic - calling, 0.22),
    )
    parts = []
    start = 0.0
    for name, us, opacity in shares:
        width = x(start + us) - x(start)
        if width >= 0.3:
            tip = f"{name}: {microseconds(us)} us"
            parts.append(rectangle(x(start), y, width - 0.7, height, point.variant, tip, opacity))
        start += us
    return parts


def heat_map(sweep: Sweep) -> str:
    """Speed-up of fused over eager. Green is faster, red is slower, white is equal; doublings are equal steps."""
    cell_w, cell_h, left, top = 58.0, 34.0, 60.0, 26.0
    batches, widths = sweep.batches, sweep.widths
    parts = [text(left - 10, top - 8, "width", "end")]
    parts += [
        text(left + (i + 0.5) * cell_w, top - 8, str(batch), "middle") for i, batch in enumerate(batches)
    ]
    parts += [
        text(left - 10, top + (i + 0.5) * cell_h + 4, str(width), "end") for i, width in enumerate(widths)
    ]
    for cell in sweep.cells:
        x = left + batches.index(cell.batch) * cell_w
        y = top + widths.index(cell.width) * cell_h
        tip = (
            f"width {cell.width}, batch {cell.batch}: eager {microseconds(cell.eager_us)} us, "
            f"fused {microseconds(cell.fused_us)} us"
        ) + ("; the machine was busy, the times mean nothing" if cell.busy else "")
        strength = 0.0 if cell.busy else min(1.0, abs(math.log2(cell.speedup)) / 3)
        colour = "good" if cell.speedup >= 1 else "bad"
        parts.append(rectangle(x, y, cell_w - 2, cell_h - 2, colour, tip, 0.08 + 0.62 * strength))
        parts.append(text(x + cell_w / 2 - 1, y + cell_h / 2 + 3, wording.sweep_cell(cell), "middle", "ink"))
    right, bottom = left + len(batches) * cell_w, top + len(widths) * cell_h
    parts.append(text((left + right) / 2, bottom + 16, "rows in the batch", "middle"))
    return drawing(right, bottom + 24, "".join(parts), "speed-up by batch size and width")
