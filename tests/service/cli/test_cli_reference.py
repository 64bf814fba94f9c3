# SPDX-License-Identifier: Apache-2.0
"""docs/operations/commands.md: its generated parts are current, and every command has its place and an example."""

from __future__ import annotations

import re

from fused_mlp.service.cli.json_keys import DOCUMENTS
from fused_mlp.service.cli.reference import PAGE, commands, filled

TEXT = PAGE.read_text()


def test_the_page_is_current():
    assert filled(TEXT) == TEXT, "python -m fused_mlp.service.cli.reference --write"


def test_every_command_has_a_heading_an_example_and_its_options():
    headings = re.findall(r"^#{2,3} (.+)$", TEXT, re.MULTILINE)
    for name, _ in commands():
        assert name in headings
        assert re.search(rf"^fused-mlp {name}\b", TEXT, re.MULTILINE), name
        assert f"<!-- options: {name} -->" in TEXT or name == "serve"


def test_every_json_document_is_on_the_page():
    shown = {id(DOCUMENTS[name]) for name in re.findall(r"<!-- json: (.+) -->", TEXT)}
    assert shown >= {id(document) for document in DOCUMENTS.values()}


def test_defaults_of_0_and_1_are_shown_and_those_of_flags_are_not():
    options = TEXT.partition("<!-- options: ray up -->")[2].partition("<!-- /options -->")[0]
    assert re.search(r"^\| `--cpus CPUS` \| `1` \|", options, re.MULTILINE)
    assert re.search(r"^\| `--gpus GPUS` \| `0` \|", options, re.MULTILINE)
    assert re.search(r"^\| `--wait, --no-wait` \|  \|", options, re.MULTILINE)
