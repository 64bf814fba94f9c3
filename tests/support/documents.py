# SPDX-License-Identifier: Apache-2.0
"""What docs/operations/commands.md says of --json: the keys of each command's document."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "commands.md"
_TABLE = re.compile(r"<!-- json: (.+?) -->(.+?)<!-- /json -->", re.DOTALL)

KEYS: dict[str, set[str]] = {
    name: set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    for names, table in _TABLE.findall(PAGE.read_text())
    for name in names.split(", ")
}
