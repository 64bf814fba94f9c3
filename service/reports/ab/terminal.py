# SPDX-License-Identifier: Apache-2.0
"""The comparison of both arms as a table for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from fused_mlp.service.ab.report import Report
from fused_mlp.service.reports.ab.wording import difference_text, ratio_text, value_text
from fused_mlp.service.reports.terminal import note_lines, plain_table


def report_view(report: Report) -> RenderableType:
    first, second = report.arms
    titles = (report.title, first, second, f"{second} / {first}")
    table = plain_table(*titles, left=(titles[0], titles[3]))
    for column in table.columns[1:3]:
        column.no_wrap = True
    for row in report.rows:
        values = (value_text(row.first, row.unit), value_text(row.second, row.unit))
        table.add_row(row.name, *values, ratio_text(row.ratio))
    facts = [Text(f"{name}: {text}", "dim") for name, text in report.facts.items()]
    return Group(
        table,
        Text(difference_text(report.difference)),
        *facts,
        *note_lines(report.notes),
        Text(""),
        Text(report.verdict, "bold" if report.valid else "bold red"),
    )
