# SPDX-License-Identifier: Apache-2.0
"""The figures by name. A figure is a function of the results that returns Markdown; its docstring says what it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"

Result = dict[str, Any]


class Results:
    """The result files of a folder, each read once. `fresh`: results by name that are in no file yet."""

    def __init__(self, folder: Path = RESULTS, fresh: Mapping[str, Result] | None = None) -> None:
        self.folder = folder
        self._fresh = fresh or {}
        self._read = cache(self._read_file)

    def __getitem__(self, name: str) -> Result:
        return self._fresh[name] if name in self._fresh else self._read(name)

    def __contains__(self, name: str) -> bool:
        return (self.folder / f"{name}.json").exists()

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def _read_file(self, name: str) -> Result:
        found: Result = json.loads((self.folder / f"{name}.json").read_text())
        return found


Figure = Callable[[Results], str]
FIGURES: dict[str, Figure] = {}


def figure(name: str) -> Callable[[Figure], Figure]:
    def register(function: Figure) -> Figure:
        assert name not in FIGURES, name
        FIGURES[name] = function
        return function

    return register
