# SPDX-License-Identifier: Apache-2.0
"""How figures write numbers, tables and where a result comes from. Knows no benchmark."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

_COMMAND_LENGTH = 90
# Options that name the files of a run and do not change the measurement.
_OUTPUT_OPTIONS = re.compile(r" (--output|--plot|--add-to) \S+| --resume| --report| --markdown")


def number(us: float | None) -> str:
    """Microseconds, or anything else of three digits."""
    if us is None or math.isnan(us):
        return ""
    return f"{us:.1f}" if us < 100 else f"{us:,.0f}"


def times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def span(low: float, high: float, form: str = "{}") -> str:
    """`3 to 5 %`, or `5 %` where both are written the same; `form` may be a format such as `{:.2f}x`."""
    first, last = form.format(low), form.format(high)
    return first if first == last else f"{first} to {last}"


def ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.2f} MB" if size < 1e7 else f"{size / 1e6:.1f} MB"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """The first `left` columns are text, the others numbers."""
    marks = ["---"] * left + ["---:"] * (len(heads) - left)
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join(marks)}|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return re.sub(r"(?<=\|)  (?=\|)", " ", "\n".join(lines))


def clean_command(command: str) -> str:
    """Without what says where its files went."""
    return _OUTPUT_OPTIONS.sub("", command)


def provenance(*results: dict[str, Any]) -> str:
    """One line: the machine, then date, commit and command of each result."""
    machine = results[0]["machine"]
    isa = f", {machine['isa']}" if "isa" in machine else ""
    runs = []
    for result in results:
        date = f"{result['date']}, " if "date" in result else ""
        command = clean_command(result["command"])
        if len(command) > _COMMAND_LENGTH:  # the figure `environment` has all of it
            command = f"{command[:_COMMAND_LENGTH].rpartition(' ')[0]} ..."
        runs.append(f"{date}commit {result['commit']}, `{command}`")
    where = f"{machine['cpu']}, {machine['cores']} cores{isa}, Python {machine['python']}"
    return f"<small>{where}; {'; '.join(dict.fromkeys(runs))}</small>"


def paragraphs(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
