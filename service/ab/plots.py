"""The plots of a report as inline SVG. Colours come from the page's style; the variants differ in their strokes too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from fused_mlp.service.ab.report import Report
from fused_mlp.service.ab.wording import seconds_text
from fused_mlp.service.client.prediction import Variant

_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 40
Scale = Callable[[float], float]


def distribution_plot(report: Report) -> str:
    points = [x for series in report.distribution.values() for x, _ in series if x > 0]
    if not points:
        return "<p>No answers to draw.</p>"
    low, high = min(points), max(points)
    x = _scale(math.log10(low), math.log10(high * 1.05), _LEFT, _WIDTH - _RIGHT)
    y = _scale(0, 1, _HEIGHT - _BOTTOM, _TOP)
    ticks = "".join(_x_tick(x(math.log10(t)), seconds_text(t)) for t in _log_ticks(low, high))
    ticks += "".join(_y_tick(y(share), f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1))
    curves = "".join(
        _curve(variant, ((x(math.log10(v)), y(share)) for v, share in series if v > 0))
        for variant, series in report.distribution.items()
    )
    return _svg("Share of requests answered within a time, by variant", ticks + curves + _legend())


def timeline_plot(report: Report) -> str:
    points = [point for series in report.timeline.values() for point in series]
    if not points:
        return "<p>No answers to draw.</p>"
    last = max(t for t, _ in points) or 1
    x = _scale(0, last, _LEFT, _WIDTH - _RIGHT)
    top = max(v for _, v in points) * 1.1
    y = _scale(0, top, _HEIGHT - _BOTTOM, _TOP)
    ticks = "".join(_x_tick(x(t), f"{t:g} s") for t in linear_ticks(last))
    ticks += "".join(_y_tick(y(t), seconds_text(t)) for t in linear_ticks(top)[1:])
    dots = "".join(
        f'<circle class="dot {variant}" cx="{x(t):.1f}" cy="{y(v):.1f}" r="3.5"/>'
        for variant, series in report.timeline.items()
        for t, v in series
    )
    return _svg("Median latency of each slice of time, by variant", ticks + dots + _legend())


def ratio_plot(report: Report) -> str:
    rows = [(row.name, row.ratio) for row in report.rows if row.ratio is not None]
    if not rows:
        return "<p>No ratio to draw.</p>"
    low = min(0.9, *(ratio.low for _, ratio in rows))
    high = max(1.1, *(ratio.high for _, ratio in rows))
    height, left = 30 * len(rows) + 34, 190
    x = _scale(math.log(low), math.log(high), left, _WIDTH - _RIGHT - 8)
    parts = [
        f'<line class="grid" x1="{x(math.log(t)):.1f}" x2="{x(math.log(t)):.1f}" y1="4" y2="{height - 26}"/>'
        f'<text x="{x(math.log(t)):.1f}" y="{height - 8}" text-anchor="middle">{t:g}x</text>'
        for t in _ratio_ticks(low, high)
    ]
    for index, (name, ratio) in enumerate(rows):
        middle = 20 + 30 * index
        a, b, c = (x(math.log(v)) for v in (ratio.low, ratio.value, ratio.high))
        parts.append(
            f'<text x="4" y="{middle + 4}">{name}</text>'
            f'<line class="bar" x1="{a:.1f}" x2="{c:.1f}" y1="{middle}" y2="{middle}"/>'
            f'<circle class="mean" cx="{b:.1f}" cy="{middle}" r="4.5"/>'
        )
    return _svg("unfused / fused with intervals; right of 1 fused needs less", "".join(parts), height)


def _svg(title: str, content: str, height: int = _HEIGHT) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{title}">{content}</svg>'


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    span = (high - low) or 1
    return lambda value: start + (end - start) * (value - low) / span


def _curve(variant: Variant, points: Iterable[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="curve {variant}" points="{path}"/>'


def _x_tick(x: float, text: str) -> str:
    line = f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
    return f'{line}<text x="{x:.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{text}</text>'


def _y_tick(y: float, text: str) -> str:
    line = f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _legend() -> str:
    y = _HEIGHT - 6
    return "".join(
        f'<line class="curve {variant}" x1="{x}" x2="{x + 28}" y1="{y - 4}" y2="{y - 4}"/>'
        f'<text x="{x + 34}" y="{y}">{variant}</text>'
        for variant, x in (("fused", _LEFT), ("unfused", _LEFT + 100))
    )


def linear_ticks(high: float) -> list[float]:
    """From 0, about five, at round numbers."""
    magnitude = 10.0 ** math.floor(math.log10(high / 4))
    step = next(step for step in (1, 2, 2.5, 5, 10) if step * magnitude >= high / 5) * magnitude
    return [index * step for index in range(math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [t for d in decades for t in (10.0**d, 2 * 10.0**d, 5 * 10.0**d) if low <= t <= high]


def _ratio_ticks(low: float, high: float) -> list[float]:
    candidates = (0.1, 0.2, 0.5, 0.8, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)
    return [t for t in candidates if low <= t <= high]
