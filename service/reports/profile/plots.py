"""The plots of the page: time over batch size, where the time of each variant goes, and the map of a sweep."""

from __future__ import annotations

import math

from fused_mlp.kernels.profile import VARIANTS, Point, Profile, Sweep
from fused_mlp.service.reports.profile import wording
from fused_mlp.service.reports.profile.wording import microseconds
from fused_mlp.service.reports.svg import drawing, line, rectangle, text

_W, _H = 520.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 112.0, 16.0, 40.0


def time_plot(profile: Profile) -> str:
    """Both axes logarithmic: equal factors are equal distances."""
    times = [point.time_us for point in profile.points]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    high = max(high, low + 1)
    batches = profile.batches
    first, last = math.log2(min(batches)), math.log2(max(batches))

    def x_of(batch: int) -> float:
        share = (math.log2(batch) - first) / (last - first) if last > first else 0.5
        return _LEFT + share * (_W - _LEFT - _RIGHT)

    def y_of(us: float) -> float:
        return _TOP + (high - math.log10(us)) / (high - low) * (_H - _TOP - _BOTTOM)

    parts = []
    for power in range(low, high + 1):
        y = y_of(10.0**power)
        parts.append(line(_LEFT, y, _W - _RIGHT, y))
        label = f"{10**power:g} us" if power < 3 else f"{10 ** (power - 3):g} ms"
        parts.append(text(_LEFT - 8, y + 4, label, anchor="end", fill="var(--muted)"))
    for batch in batches:
        parts.append(text(x_of(batch), _H - _BOTTOM + 18, str(batch), anchor="middle", fill="var(--muted)"))
    parts.append(
        text((_LEFT + _W - _RIGHT) / 2, _H - 5, "rows in the batch", anchor="middle", fill="var(--muted)")
    )
    ends: list[tuple[float, str]] = []
    for variant in VARIANTS:
        points = [point for point in profile.points if point.variant == variant]
        if not points:
            continue
        places = [(x_of(point.batch), y_of(point.time_us)) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(
            f"<polyline points='{path}' fill='none' stroke='var(--{variant})' stroke-width='2' "
            "stroke-linejoin='round'/>"
        )
        for (x, y), point in zip(places, points, strict=True):
            tip = f"{variant}, batch {point.batch}: {microseconds(point.time_us)} us"
            parts.append(
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='var(--{variant})'>"
                f"<title>{tip}</title></circle>"
            )
        ends.append((places[-1][1] + 4, variant))
    # Labels at the ends of the lines, in their order, moved apart where they would lie on each other.
    free = 0.0
    for end, label in sorted(ends):
        y = max(end, free)
        free = y + 15
        parts.append(text(_W - _RIGHT + 10, y, label, fill=f"var(--{label})", extra="font-weight='600'"))
    return drawing(_W, _H, "".join(parts), "time per forward pass over batch size")


def share_plot(profile: Profile) -> str:
    """Per batch and variant: the share of eager's time that is arithmetic at the limit, calling, and the rest."""
    rows = [point for batch in profile.batches for point in profile.points if point.batch == batch]
    left, right, height = 118.0, 70.0, 19.0
    parts = []
    y = 6.0
    for index, point in enumerate(rows):
        if index and rows[index - 1].batch != point.batch:
            y += 9
        eager = profile.point("eager", point.batch)
        scale = (_W - left - right) / max(each.time_us for each in rows if each.batch == point.batch)
        if eager is None or eager is point or index == 0 or rows[index - 1].batch != point.batch:
            parts.append(text(0, y + 14, f"batch {point.batch}", fill="var(--muted)"))
        parts.append(
            text(
                left - 8,
                y + 14,
                point.variant,
                anchor="end",
                fill=f"var(--{point.variant})",
                extra="font-weight='600'",
            )
        )
        parts += _bar(point, left, y, height - 4, scale)
        parts.append(text(left + point.time_us * scale + 6, y + 14, f"{microseconds(point.time_us)} us"))
        y += height
    return drawing(_W, y + 4, "".join(parts), "where the time of a forward pass goes")


def _bar(point: Point, x: float, y: float, height: float, scale: float) -> list[str]:
    regime = point.regime
    arithmetic = min(point.time_us, regime.arithmetic_us)
    calling = min(point.time_us - arithmetic, regime.overhead_us)
    rest = point.time_us - arithmetic - calling
    parts = []
    shares = (("arithmetic at the limit", arithmetic, 1.0), ("calling", calling, 0.55), ("rest", rest, 0.22))
    for name, us, opacity in shares:
        if us * scale < 0.3:
            continue
        bar = rectangle(
            x, y, us * scale - 0.7, height, f"var(--{point.variant})", f"{name}: {microseconds(us)} us"
        )
        parts.append(f"<g opacity='{opacity}'>{bar}</g>")
        x += us * scale
    return parts


_CELL, _MARGIN = 58.0, 60.0


def heat_map_width(sweep: Sweep) -> float:
    return _MARGIN + len(sweep.batches) * _CELL


def heat_map(sweep: Sweep, alone: bool = False) -> str:
    """Speed-up of fused over eager. Green is faster, red is slower, white is equal; doublings are equal steps."""
    cell_w, cell_h, left, top = _CELL, 34.0, _MARGIN, 26.0
    batches, widths = sweep.batches, sweep.widths
    parts = []
    for column, batch in enumerate(batches):
        x = left + (column + 0.5) * cell_w
        parts.append(text(x, top - 8, str(batch), anchor="middle", fill="var(--muted)"))
    for row, width in enumerate(widths):
        y = top + (row + 0.5) * cell_h + 4
        parts.append(text(left - 10, y, str(width), anchor="end", fill="var(--muted)"))
    for cell in sweep.cells:
        x = left + batches.index(cell.batch) * cell_w
        y = top + widths.index(cell.width) * cell_h
        tip = (
            f"width {cell.width}, batch {cell.batch}: eager {microseconds(cell.eager_us)} us, "
            f"fused {microseconds(cell.fused_us)} us"
        )
        if cell.busy:
            tip += "; the machine was busy, the times mean nothing"
        strength = 0.0 if cell.busy else min(1.0, abs(math.log2(cell.speedup)) / 3)
        name = "good" if cell.speedup >= 1 else "bad"
        body = rectangle(x, y, cell_w - 2, cell_h - 2, f"var(--{name})", tip, 3)
        parts.append(f"<g opacity='{0.08 + 0.62 * strength:.2f}'>{body}</g>")
        label = wording.sweep_cell(cell)
        parts.append(
            text(
                x + cell_w / 2 - 1, y + cell_h / 2 + 3, label, anchor="middle", extra="pointer-events='none'"
            )
        )
    bottom = top + len(widths) * cell_h
    parts.append(
        text(
            left + len(batches) * cell_w / 2,
            bottom + 16,
            "rows in the batch",
            anchor="middle",
            fill="var(--muted)",
        )
    )
    parts.append(text(8, top - 8, "width", fill="var(--muted)"))
    return drawing(
        heat_map_width(sweep), bottom + 24, "".join(parts), "speed-up by batch size and width", alone
    )
