# SPDX-License-Identifier: Apache-2.0
"""The comparison of both arms as one HTML page."""

from __future__ import annotations

from html import escape

from fused_mlp.service.ab.report import VARIANT_ARMS, Report
from fused_mlp.service.reports.ab.wording import difference_text, ratio_text, value_text
from fused_mlp.service.reports.page import facts, key, name, page, said, section, table
from fused_mlp.service.reports.svg import HEIGHT, WIDTH, Axis, columns, curve, dot, drawing, grid, line, text
from fused_mlp.service.reports.units import seconds_text


def html_report(report: Report) -> str:
    first, second = report.arms
    both = dict(zip(VARIANT_ARMS, report.arms, strict=True))  # a colour for each
    marked = [name(colour, arm) for colour, arm in both.items()]
    rows = [
        (
            escape(row.name),
            value_text(row.first, row.unit),
            value_text(row.second, row.unit),
            ratio_text(row.ratio),
        )
        for row in report.rows
    ]
    titles = ("", *marked, f"{second} / {first} (95 % interval)")
    described = [*report.facts.items(), *(("note", note) for note in report.notes)]
    plots = (
        section("Ratio, with its 95 % interval", ratio_plot(report))
        + section("Share of requests answered within a time", distribution_plot(report) + key(both))
        + section("Median latency over the run", timeline_plot(report) + key(both))
        + section("How it was measured", facts(described))
    )
    body = (
        f"<h1>{marked[0]} against {marked[1]}: {escape(report.title)}</h1>"
        f"{said(report.verdict, bad=not report.valid)}{table(titles, [rows], left=(titles[0], titles[3]))}"
        f"<p>{escape(difference_text(report.difference))}</p><div class='pair'>{plots}</div>"
    )
    return page(f"{first} against {second}: {report.title}", body)


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
    for index, (label, ratio) in enumerate(found):
        y = 22.0 + 30 * index
        interval = line(x(ratio.low), y, x(ratio.high), y, "line neutral")
        parts += [text(0, y + 4, label, kind="ink"), interval, dot(x(ratio.value), y, "neutral")]
    return drawing(
        WIDTH,
        bottom + 26,
        "".join(parts),
        f"{report.arms[1]} / {report.arms[0]}; right of 1 {report.arms[0]} needs less",
    )
