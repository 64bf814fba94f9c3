# SPDX-License-Identifier: Apache-2.0
"""Tries the figures on results that are not written to the pages, such as those of a quick run."""

from __future__ import annotations

from pathlib import Path

from bench.docs import figures  # noqa: F401 - registers them
from bench.docs.registry import FIGURES, RESULTS, Results


class Overlay(Results):
    """A folder's results, and the stored ones where it has none."""

    def _read_file(self, name: str) -> dict[str, object]:
        if name in self:
            return super()._read_file(name)
        return Results(RESULTS)[name]


def failing_figures(folder: Path) -> dict[str, str]:
    """By name, why."""
    results = Overlay(folder)
    failing = {}
    for name, figure in FIGURES.items():
        try:
            figure(results)
        except (KeyError, ValueError, StopIteration, IndexError, TypeError) as error:
            failing[name] = f"{type(error).__name__}: {error}"
    return failing
