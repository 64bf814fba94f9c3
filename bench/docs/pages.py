# SPDX-License-Identifier: Apache-2.0
"""The pages with figures: text between `<!-- figure: NAME -->` and `<!-- /figure -->`, each on a line of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bench.docs.registry import FIGURES, Results

_MARKED = re.compile(
    r"^<!-- figure: (?P<name>[a-z0-9-]+) -->\n(?P<text>.*?)^<!-- /figure -->$", re.MULTILINE | re.DOTALL
)
_OPENED = re.compile(r"^<!-- figure: [a-z0-9-]+ -->$", re.MULTILINE)


class PageError(Exception):
    """A page whose markers cannot be followed."""


def pages(root: Path) -> Iterator[Path]:
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))


def names_in(text: str) -> list[str]:
    return [match["name"] for match in _MARKED.finditer(text)]


def rewrite(text: str, results: Results) -> str:
    """The page as it should be."""
    if len(_OPENED.findall(text)) != len(names_in(text)):
        raise PageError("a figure is opened and not closed: expected <!-- /figure --> on a line of its own")
    for name in names_in(text):
        if name not in FIGURES:
            raise PageError(f"no figure is called {name}; there are: {', '.join(sorted(FIGURES))}")
    # Blank lines: without them a Markdown processor takes a table after a comment for more of the comment.
    return _MARKED.sub(
        lambda match: (
            f"<!-- figure: {match['name']} -->\n\n{FIGURES[match['name']](results).strip()}\n\n<!-- /figure -->"
        ),
        text,
    )
