"""The comparison of both variants as one HTML page."""

from __future__ import annotations

from html import escape

from fused_mlp.service.ab.report import Report
from fused_mlp.service.reports.ab.plots import distribution_plot, ratio_plot, timeline_plot
from fused_mlp.service.reports.ab.wording import difference_text, ratio_text, value_text
from fused_mlp.service.reports.page import facts, key, name, page, said, section, table

_BOTH = {"fused": "fused", "unfused": "unfused"}


def html_report(report: Report) -> str:
    rows = [
        (
            escape(row.name),
            value_text(row.fused, row.unit),
            value_text(row.unfused, row.unit),
            ratio_text(row.ratio),
        )
        for row in report.rows
    ]
    titles = ("", name("fused"), name("unfused"), "unfused / fused (95 % interval)")
    described = [*report.facts.items(), *(("note", note) for note in report.notes)]
    plots = (
        section("Ratio, with its 95 % interval", ratio_plot(report))
        + section("Share of requests answered within a time", distribution_plot(report) + key(_BOTH))
        + section("Median latency over the run", timeline_plot(report) + key(_BOTH))
        + section("How it was measured", facts(described))
    )
    body = (
        f"<h1>{name('fused')} against {name('unfused')}: {escape(report.title)}</h1>"
        f"{said(report.verdict, bad=not report.valid)}{table(titles, [rows], left=(titles[0], titles[3]))}"
        f"<p>{escape(difference_text(report.difference))}</p><div class='pair'>{plots}</div>"
    )
    return page(f"fused against unfused: {report.title}", body)
