# SPDX-License-Identifier: Apache-2.0
"""Links in Markdown files lead to files and headings that exist, as GitHub reads them. The strict build of the site
says the same of its own pages; the README, the examples and others are checked here only."""

from __future__ import annotations

import posixpath
import re

import pytest
from markdown_it import MarkdownIt

from docs.site.links import links
from docs.site.sources import ROOT, folders, tracked

FILES = sorted(path for path in tracked() if path.endswith(".md"))


def _anchors(text: str) -> set[str]:
    """The ids that GitHub gives to headings."""
    tokens = MarkdownIt().parse(text)
    titles = [tokens[i + 1].children or [] for i, token in enumerate(tokens) if token.type == "heading_open"]
    plain = [
        "".join(part.content for part in title if part.type in ("text", "code_inline")) for title in titles
    ]
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain]
    return {
        slug if slugs.index(slug) == i else f"{slug}-{slugs[:i].count(slug)}" for i, slug in enumerate(slugs)
    }


@pytest.mark.parametrize("file", FILES)
def test_links_lead_somewhere(file: str):
    text = (ROOT / file).read_text()
    for link in links(text):
        if not link.is_relative and not link.target.startswith("#"):
            continue
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), link.path)) if link.path else file
        assert path in tracked() | folders(), f"{file}: there is no {link.target}"
        if (
            link.anchor and path.endswith(".md") and path != "docs/api.md"
        ):  # its headings are made by the site
            assert link.anchor in _anchors((ROOT / path).read_text()), f"{file}: no heading for {link.target}"


def test_headings_have_the_ids_of_github():
    text = "# A/B and `canary`\n\n## What's new?\n\n## What's new?\n\n### One - two\n"
    assert _anchors(text) == {"ab-and-canary", "whats-new", "whats-new-1", "one---two"}
