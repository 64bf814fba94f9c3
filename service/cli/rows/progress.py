# SPDX-License-Identifier: Apache-2.0
"""A progress bar on stderr, where that is a terminal; nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    total: int | None, share_read: Callable[[], float | None]
) -> Iterator[Callable[[int], None]]:
    """Yields what to call with the number of rows that are done. It shows from the second call on: most inputs are one
    request. `total`: of the rows; without it, the share of the input that was read counts."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.fields[rows]:,} rows"), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=None, rows=0)
    calls = 0

    def show(rows: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            bar.start()
        share = rows / total if total else share_read()
        bar.update(task, total=None if share is None else 1.0, completed=share or 0.0, rows=rows)

    try:
        yield show
    finally:
        bar.stop()
