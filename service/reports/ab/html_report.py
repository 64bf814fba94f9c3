# SPDX-License-Identifier: Apache-2.0
"""The comparison of both arms as one HTML page."""

from __future__ import annotations

from html import escape

from fused_mlp.service.ab.report import VARIANT_ARMS, Report
from fused_mlp.service.reports.ab.plots import distribution_plot, ratio_plot, timeline_plot
from fused_mlp.service.reports.ab.wording import difference_text, ratio_text, value_text
from fused_mlp.service.reports.page import facts, key, name, page, said, section, table


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
