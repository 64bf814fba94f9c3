# SPDX-License-Identifier: Apache-2.0
"""Runs parts as processes with a bar that shows which one, how many are left and how long it may take. Keeps what is
done in a file, so that a run can be resumed. Knows no benchmark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from bench.parts import PARTS, Part
from bench.provenance import ROOT

PATIENCE_S = 20
BAR_WIDTH, CLOCK_WIDTH = 16, 28
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_DRAWN = re.compile(r"[\u2500-\u257f|]")  # a line of a table
STATES = {"done": "green", "skipped": "dim", "failed": "red", "interrupted": "yellow"}


@dataclass
class Outcome:
    part: str
    state: str  # of STATES
    seconds: float
    file: Path | None
    said: str = ""
    left_out: dict[str, str] = field(default_factory=dict)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


class Runner:
    def __init__(
        self,
        console: Console,
        folder: Path,
        results: Path,
        quick: bool,
        commit: str,
        parts: dict[str, Part] = PARTS,
    ) -> None:
        self._console, self._folder, self._results = console, folder, results
        self._quick, self._commit, self._parts = quick, commit, parts
        self._state = folder / ("done-quick.json" if quick else "done.json")
        self._last_line = ""

    def run(self, names: Sequence[str], resume: bool) -> list[Outcome]:
        """Ends after the part that Ctrl-C interrupts."""
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        self._results.mkdir(parents=True, exist_ok=True)
        done = json.loads(self._state.read_text()) if self._state.exists() else {}
        outcomes: list[Outcome] = []
        todo = []
        for name in names:
            known = done.get(name, {})
            path = self._parts[name].path(self._results)
            if resume and known.get("commit") == self._commit and path.exists():
                outcomes.append(Outcome(name, "skipped", known["seconds"], path, "done at this commit"))
            else:
                todo.append(name)
        expected = {
            name: done.get(name, {}).get("seconds")
            or (self._parts[name].quick_seconds if self._quick else self._parts[name].seconds)
            for name in todo
        }
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR_WIDTH),
            TextColumn("{task.fields[clock]}"),
        )
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task("starting", total=sum(expected.values()) or 1, clock="")
            for number, name in enumerate(todo, 1):
                title = f"[bold]{name}[/] {number}/{len(todo)}"
                if not self._console.is_terminal:  # a log has lines instead of a bar
                    said = f"{name} {number}/{len(todo)}, about {clock(expected[name])}"
                    self._console.print(said, highlight=False)
                outcome = self._run_part(name, title, bar, task, expected)
                outcomes.append(outcome)
                if outcome.state == "done":
                    done[name] = {"commit": self._commit, "seconds": round(outcome.seconds, 1)}
                    self._state.write_text(json.dumps(done, indent=1) + "\n")
                else:
                    self._console.print(
                        f"[red]{name} {outcome.state}[/]: {escape(outcome.said)}", highlight=False
                    )
                if outcome.state == "interrupted":
                    break
                expected.pop(name)
        return outcomes

    def _run_part(
        self, name: str, title: str, bar: Progress, task: TaskID, expected: dict[str, float]
    ) -> Outcome:
        part = self._parts[name]
        path, log = part.path(self._results), self._folder / "logs" / f"{name}.log"
        command = [sys.executable, *part.command(self._quick)]
        if self._quick:  # a full run writes to its own place, and its command is what one would type
            command += ["--output", str(path)]
        begun, was = time.monotonic(), path.stat().st_mtime_ns if path.exists() else 0
        already = bar.tasks[0].completed
        room = max(0, self._console.width - len(title) - BAR_WIDTH - CLOCK_WIDTH)

        def show_progress() -> None:
            spent = time.monotonic() - begun
            left = max(0.0, expected[name] - spent) + sum(v for k, v in expected.items() if k != name)
            bar.update(
                task,
                completed=already + min(spent, 0.95 * expected[name]),
                description=f"{title} [dim]{escape(self._last_line[:room])}[/]",
                clock=f"{clock(bar.tasks[0].elapsed or 0)}, about {clock(left)} left",
            )

        try:
            code = self._execute(command, part.variables, log, show_progress)
        except KeyboardInterrupt:
            return Outcome(name, "interrupted", time.monotonic() - begun, None, "Ctrl-C")
        seconds = time.monotonic() - begun
        bar.update(task, completed=already + expected[name])
        if code or not path.exists() or path.stat().st_mtime_ns == was:
            why = self._last_line or f"exit code {code}"
            return Outcome(name, "failed", seconds, log, f"{why} (see {_short(log)})")
        left_out = json.loads(path.read_text()).get("left_out", {})
        return Outcome(name, "done", seconds, path, left_out=left_out)

    def _execute(
        self, command: list[str], variables: Mapping[str, str], log: Path, show_progress: Callable[[], None]
    ) -> int:
        """The exit code. Ctrl-C ends the command first."""
        interrupted = False

        def note_interrupt(*_: object) -> None:
            nonlocal interrupted
            interrupted = True  # an exception could come between any two lines, and leave the command running

        before = signal.signal(signal.SIGINT, note_interrupt)
        try:
            with log.open("w") as written, subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
                env=os.environ | variables | {"COLUMNS": "180"}, start_new_session=True,
            ) as process:  # fmt: skip
                assert process.stdout is not None
                self._last_line = ""
                reader = threading.Thread(target=self._copy, args=(process.stdout, written))
                reader.start()
                try:
                    while process.poll() is None and not interrupted:
                        show_progress()
                        time.sleep(0.2)
                finally:
                    if process.poll() is None:
                        self._end(process)
                    reader.join()
        finally:
            signal.signal(signal.SIGINT, before)
        if interrupted:
            raise KeyboardInterrupt
        return process.returncode

    def _copy(self, output: IO[str], log: IO[str]) -> None:
        for line in output:
            log.write(line)
            text = _ANSI.sub("", line).strip()
            if text and not _DRAWN.match(text):
                self._last_line = text

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        """SIGINT to the part, which ends its servers; its whole session is killed if it does not."""
        process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def show(console: Console, outcomes: Sequence[Outcome]) -> None:
    table = Table()
    for column in ("part", "", "time", "file"):
        table.add_column(column, justify="right" if column == "time" else "left", overflow="fold")
    for each in outcomes:
        file = _short(each.file) if each.file else ""
        colour = STATES[each.state]
        table.add_row(
            each.part, f"[{colour}]{each.state}[/]", clock(each.seconds) if each.seconds else "", file
        )
    console.print(table)
    for each in outcomes:
        if each.state == "failed":
            console.print(f"{each.part} failed: {each.said}", highlight=False, markup=False)
        for peer, why in each.left_out.items():
            console.print(f"{each.part} without {peer}: {why}", highlight=False, markup=False)
