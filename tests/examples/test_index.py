# SPDX-License-Identifier: Apache-2.0
"""The index of the examples: complete, and its clients' README runs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.page import ROOT
from tests.examples.running import run

EXAMPLES = ROOT / "examples"


def test_index_names_every_example_and_no_other() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    folders = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    assert sorted(listed) == sorted(folders)
    assert folders == {path.name for path in EXAMPLES.iterdir() if path.is_dir()}


def test_programs_are_short_enough_to_copy() -> None:
    for path in EXAMPLES.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 80, path


def test_client_in_python_prints_the_digit(tmp_path: Path) -> None:
    assert run("clients", tmp_path).startswith("digit 4\n")
