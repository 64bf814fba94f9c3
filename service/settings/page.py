# SPDX-License-Identifier: Apache-2.0
"""`python -m fused_mlp.service.settings.page --write` renews the generated tables of docs/operations/settings.md: the
settings between the markers `<!-- settings -->` and `<!-- /settings -->`, and the fields of FUSED_MLP_LIMITS between
those of `limits`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from fused_mlp.service.settings.docs import SettingDoc, setting_docs
from fused_mlp.service.settings.limits import Limits

PAGE = Path("docs/operations/settings.md")
_OTHER_PAGE = re.compile(r"\bdocs/(\S+?\.md)\b")  # as descriptions name one


def settings_table() -> str:
    """Markdown, one heading and one table for each group."""
    return "\n\n".join(
        f"### {group}\n\n{_table('variable', ((doc.env, doc) for doc in docs))}"
        for group, docs in groupby(setting_docs(), key=lambda doc: doc.group)
    )


def limits_table() -> str:
    return _table("field", ((doc.name, doc) for doc in setting_docs(Limits)))


def _table(heading: str, docs: Iterable[tuple[str, SettingDoc]]) -> str:
    rows = [_row(heading, "default", "what it does"), "|---|---|---|"]
    for name, doc in docs:
        description = _OTHER_PAGE.sub(_link, doc.description.replace("<", "&lt;"))
        rows.append(_row(f"`{name}`", f"`{doc.default}`" if doc.default else "", description))
    return "\n".join(rows)


def _link(named: re.Match[str]) -> str:
    target = os.path.relpath(Path("docs") / named[1], PAGE.parent)
    return f"[{named[1]}]({target})"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def with_tables(text: str) -> str:
    """`text` with the tables between its markers renewed."""
    for name, table in {"settings": settings_table, "limits": limits_table}.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, has_begin, rest = text.partition(begin)
        _, has_end, after = rest.partition(end)
        if not (has_begin and has_end):
            raise ValueError(f"expected the markers {begin} and {end}")
        text = f"{before}{begin}\n{table()}\n{end}{after}"
    return text


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage, at the top of the repository: python -m fused_mlp.service.settings.page --write")
    PAGE.write_text(with_tables(PAGE.read_text()))
