# SPDX-License-Identifier: Apache-2.0
"""A progress bar on stderr, if that is a terminal. It appears when a command takes longer than a moment, and is erased
when the command ends or is interrupted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, Task, TaskID
    from rich.text import Text

SHOW_AFTER_S = 0.3


class Bar:
    """Without a bar, all methods do nothing."""

    def __init__(self, progress: Progress | None = None, task: TaskID | None = None) -> None:
        self._progress, self._task = progress, task

    def say(self, text: str) -> None:
        """Describes the current work."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text)

    def update(self, done: float, total: float | None, count: str | None = None) -> None:
        """`total` None: not known. `count` replaces `done/total` beside the bar."""
        if self._progress is not None and self._task is not None:
            if count is None:
                count = "" if total is None else f"{done:g}/{total:g}"
            self._progress.update(self._task, completed=done, total=total, count=count)


@contextmanager
def progress_bar(text: str) -> Iterator[Bar]:
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TextColumn("{task.fields[count]}", markup=False),
        _time_column(),
        console=Console(stderr=True),
        transient=True,
        # A redirected stdout must not end up on the terminal.
        redirect_stdout=sys.stdout.isatty(),
    )
    bar = Bar(progress, progress.add_task(text, total=None, count=""))
    timer = threading.Timer(SHOW_AFTER_S, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        timer.join()
        progress.stop()


def _time_column() -> ProgressColumn:
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Time(ProgressColumn):
        """The remaining time if it can be estimated, else the elapsed time."""

        def render(self, task: Task) -> Text:
            left = task.time_remaining if task.total else None
            seconds = int(task.elapsed or 0 if left is None else left)
            clock = f"{seconds // 60}:{seconds % 60:02}"
            return Text(clock if left is None else f"{clock} left", style="progress.remaining")

    return Time()
