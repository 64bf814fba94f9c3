# SPDX-License-Identifier: Apache-2.0
"""Tables for a terminal, in one style."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich import box
from rich.table import Table
from rich.text import Text

from fused_mlp.service.reports.style import VARIANT_COLOURS

VARIANT_STYLES = {name: colour.any for name, colour in VARIANT_COLOURS.items()}


def plain_table(*columns: str, left: Collection[str] = ()) -> Table:
    """`left` are the columns of words. Others are aligned on the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        style = VARIANT_STYLES.get(column, "")
        table.add_column(
            column, justify="left" if column in left else "right", overflow="fold", header_style=style
        )
    return table


def note_lines(notes: Iterable[str]) -> list[Text]:
    """Prints the limits of the figures above."""
    return [Text(f"note: {note}", "yellow") for note in notes]
