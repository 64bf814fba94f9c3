# SPDX-License-Identifier: Apache-2.0
"""`python -m fused_mlp.service.settings.readme_table --write` renews the generated tables: the settings in README.md,
between the markers `<!-- settings -->` and `<!-- /settings -->`, and the limits in
docs/internals/native-front.md likewise."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from fused_mlp.service.settings.docs import SettingDoc, setting_docs
from fused_mlp.service.settings.limits import Limits

FILES = ("README.md", "docs/internals/native-front.md")


def settings_table() -> str:
    """Markdown, one table for each group."""
    return "\n\n".join(
        f"**{group}**\n\n{_table('variable', ((doc.env, doc) for doc in docs))}"
        for group, docs in groupby(setting_docs(), key=lambda doc: doc.group)
    )


def limits_table() -> str:
    return _table("field", ((doc.name, doc) for doc in setting_docs(Limits)))


def _table(heading: str, docs: Iterable[tuple[str, SettingDoc]]) -> str:
    rows = [_row(heading, "default", "what it does"), "|---|---|---|"]
    for name, doc in docs:
        rows.append(_row(f"`{name}`", f"`{doc.default}`" if doc.default else "", doc.description))
    return "\n".join(rows)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


def with_tables(text: str) -> str:
    """`text` with the tables between its markers renewed."""
    found = False
    for name, table in {"settings": settings_table, "limits": limits_table}.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, has_begin, rest = text.partition(begin)
        _, has_end, after = rest.partition(end)
        if has_begin and has_end:
            found = True
            text = f"{before}{begin}\n{table()}\n{end}{after}"
    if not found:
        raise ValueError("expected the markers <!-- settings --> and <!-- /settings -->, or those of limits")
    return text


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(
            "usage, at the top of the repository: python -m fused_mlp.service.settings.readme_table --write"
        )
    for file in map(Path, FILES):
        file.write_text(with_tables(file.read_text()))
