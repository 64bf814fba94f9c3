"""A comparison on a terminal: a progress bar on stderr, so that stdout has the result only, then the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fused_mlp.service.ab.report import Report
from fused_mlp.service.ab.wording import difference_text, ratio_text, value_text


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def report_view(report: Report) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column(report.title, overflow="fold")
    for column in ("fused", "unfused"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("unfused / fused", overflow="fold")
    for row in report.rows:
        values = (value_text(row.fused, row.unit), value_text(row.unfused, row.unit))
        table.add_row(row.name, *values, ratio_text(row.ratio))
    facts = [Text(f"{name}: {text}", "dim") for name, text in report.facts.items()]
    notes = [Text(f"note: {note}", "yellow") for note in report.notes]
    return Group(
        table,
        Text(difference_text(report.difference)),
        *facts,
        *notes,
        Text(""),
        Text(report.verdict, "bold" if report.valid else "bold red"),
    )
