# SPDX-License-Identifier: Apache-2.0
"""Every command and snippet of the README, the docs and the examples is run, or says why not. README.md in this folder
lists the directives; `pytest tests/docs -k quickstart` runs one page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page import ROOT, check_source, pages, read_page
from tests.docs.session import run_page

PAGES = pages()
# Those of the examples are run by tests/examples, which also looks at what they print.
WITH_BLOCKS = [
    name for name in PAGES if "```" in (ROOT / name).read_text() and not name.startswith("examples/")
]


@pytest.mark.gate
@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_run_or_says_why_not(name: str):
    for block in read_page(name).blocks:
        if block.source:
            check_source(block)


GATE = "docs/quickstart.md"  # the night runs the others


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.gate] if name == GATE else []) for name in WITH_BLOCKS]
)
def test_blocks_run(name: str, tmp_path: Path):
    run_page(read_page(name), tmp_path)
