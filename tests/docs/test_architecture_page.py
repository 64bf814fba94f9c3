# SPDX-License-Identifier: Apache-2.0
"""The walk through the code in docs/internals/architecture.md leads to files and names that exist, and its picture is
as the script draws it."""

from __future__ import annotations

import posixpath
import re

import pytest

from docs.site.definitions import is_name, line_of
from docs.site.links import links
from docs.site.predict_picture import COLOURS, IMAGES, LOOP, draw
from docs.site.sources import ROOT, page_of

PAGE = (ROOT / "docs/internals/architecture.md").read_text()
LINKS = [
    (link.text.strip("`"), posixpath.normpath(f"docs/internals/{link.path}"))
    for link in links(PAGE)
    if link.is_relative
]
NAMES = [(name, path) for name, path in LINKS if is_name(name, path)]


@pytest.mark.parametrize("path", sorted({path for _, path in LINKS}))
def test_linked_files_and_folders_exist(path: str):
    assert page_of(path), f"{path} is gone"


@pytest.mark.parametrize(("name", "path"), NAMES)
def test_names_are_defined_in_the_file_they_lead_to(name: str, path: str):
    assert line_of(name, path, (ROOT / path).read_text()), f"{name} is not defined in {path}"


def test_walk_names_a_function_for_every_step_of_the_picture():
    steps = dict(re.findall(r"^(\d)\. (.*?)(?=^\d\. |^\S)", PAGE, re.MULTILINE | re.DOTALL))
    assert [(int(number), text.split("**")[1].rstrip(".").lower()) for number, text in steps.items()] == [
        (number, title) for _, number, title, _ in LOOP
    ]
    for text in steps.values():
        assert re.search(r"\[`\w+::\w+`\]", text)


def test_walk_is_short_and_in_order():
    """A reader opens each file once, in the order of the links, and goes back for an answer's way out."""
    start, end = PAGE.index("1. **Read.**"), PAGE.index("Off the common path")
    walk = [link.path for link in links(PAGE[start:end]) if link.is_relative]
    files = [path for i, path in enumerate(walk) if i == 0 or path != walk[i - 1]]
    assert len(set(files)) <= 27
    assert len(files) - len(set(files)) <= 4


def test_files_of_the_engine_exist():
    table = PAGE.partition("Inside the engine:")[2].partition("## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    files = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(files) > 15
    for name in files:
        assert list((ROOT / "service/csrc/engine").rglob(f"{name}.?pp")), f"there is no {name} in the engine"


@pytest.mark.parametrize("name", COLOURS)
def test_picture_is_as_the_script_draws_it(name: str):
    assert (IMAGES / name).read_text() == draw(COLOURS[name]), "run: python -m docs.site.predict_picture"
