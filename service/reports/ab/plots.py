# SPDX-License-Identifier: Apache-2.0
"""The plots of a comparison."""

from __future__ import annotations

from fused_mlp.service.ab.report import VARIANT_ARMS, Report
from fused_mlp.service.reports.svg import HEIGHT, WIDTH, Axis, columns, curve, dot, drawing, grid, line, text
from fused_mlp.service.reports.units import seconds_text

_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, WIDTH - 14, 10.0, HEIGHT - 26
_NOTHING = "<p>No answers to draw.</p>"


def distribution_plot(report: Report) -> str:
    times = [seconds for series in report.distribution.values() for seconds, _ in series if seconds > 0]
    if not times:
        return _NOTHING
    x = Axis(min(times), max(times) * 1.05, _LEFT, _RIGHT, log=True)
    y = Axis(0, 1, _BOTTOM, _TOP)
    curves = "".join(
        curve(colour, ((x(seconds), y(share)) for seconds, share in report.distribution[arm] if seconds > 0))
        for colour, arm in zip(VARIANT_ARMS, report.arms, strict=True)
    )
    body = grid(x, y, seconds_text, lambda share: f"{share:.0%}") + curves
    return drawing(WIDTH, HEIGHT, body, "share of requests answered within a time, by arm")


def timeline_plot(report: Report) -> str:
    points = [point for series in report.timeline.values() for point in series]
    if not points:
        return _NOTHING
    x = Axis(0, max(at for at, _ in points) or 1, _LEFT, _RIGHT)
    y = Axis(0, max(median for _, median in points) * 1.1, _BOTTOM, _TOP)
    dots = "".join(
        dot(x(at), y(median), colour, f"{arm}, {at:g} s: {seconds_text(median)}")
        for colour, arm in zip(VARIANT_ARMS, report.arms, strict=True)
        for at, median in report.timeline[arm]
    )
    body = grid(x, y, lambda at: f"{at:g} s", lambda median: seconds_text(median) if median else "0") + dots
    return drawing(WIDTH, HEIGHT, body, "median latency of each slice of time, by arm")


def ratio_plot(report: Report) -> str:
    found = [(row.name, row.ratio) for row in report.rows if row.ratio is not None]
    if not found:
        return "<p>No ratio to draw.</p>"
    low = min(0.9, *(ratio.low for _, ratio in found))
    high = max(1.1, *(ratio.high for _, ratio in found))
    bottom = 30.0 * len(found) + 8
    x = Axis(low, high, 150, _RIGHT - 8, log=True)
    parts = [columns(x, x.ticks(), Axis(0, 1, bottom, 4), lambda ratio: f"{ratio:g}x")]
    parts.append(line(x(1), bottom, x(1), 4, "axis"))
    for index, (name, ratio) in enumerate(found):
        y = 22.0 + 30 * index
        interval = line(x(ratio.low), y, x(ratio.high), y, "line neutral")
        parts += [text(0, y + 4, name, kind="ink"), interval, dot(x(ratio.value), y, "neutral")]
    return drawing(
        WIDTH,
        bottom + 26,
        "".join(parts),
        f"{report.arms[1]} / {report.arms[0]}; right of 1 {report.arms[0]} needs less",
    )
