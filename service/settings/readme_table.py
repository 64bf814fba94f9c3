"""`python -m fused_mlp.service.settings.readme_table` prints the table of settings of the README;
--write puts it there, between the markers `<!-- settings -->` and `<!-- /settings -->`."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from fused_mlp.service.settings.docs import SettingDoc, setting_docs

BEGIN, END = "<!-- settings -->", "<!-- /settings -->"


def settings_table() -> str:
    """Markdown, one table for each group."""
    parts = []
    for group, docs in groupby(setting_docs(), key=lambda doc: doc.group):
        rows = "\n".join(_row(doc) for doc in docs)
        parts.append(f"**{group}**\n\n| variable | default | what it does |\n|---|---|---|\n{rows}")
    return "\n\n".join(parts)


def _row(doc: SettingDoc) -> str:
    cells = (f"`{doc.env}`", f"`{doc.default}`" if doc.default else "", doc.description)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


def with_table(text: str) -> str:
    """`text` with the table between its markers made new."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the markers {BEGIN} and {END}, in this order")
    return f"{before}{BEGIN}\n{settings_table()}\n{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        readme = Path(sys.argv[2] if len(sys.argv) > 2 else "README.md")
        readme.write_text(with_table(readme.read_text()))
    else:
        print(settings_table())
