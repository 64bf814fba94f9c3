# SPDX-License-Identifier: Apache-2.0
"""What the site has that the files of docs/ have not, as a hook of mkdocs: pages for linked files outside docs/, links
to the line that defines a name, pictures for light and dark. It warns, and so fails a strict build, if a page would
load something from elsewhere, or looks different from what GitHub makes of the same file."""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from pathlib import Path

from markdown_it import MarkdownIt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.append(str(Path(__file__).resolve().parents[2]))

from docs.site.definitions import is_name, line_of
from docs.site.links import Link, links, replace_links, replace_pictures
from docs.site.sources import PAGES, ROOT, folders, is_highlighted, page_of, page_text, tracked

log = logging.getLogger("mkdocs.hooks.site")  # a warning here fails a strict build

_github = MarkdownIt().enable("table")
# Columns beside a page that would be empty or of no use. Not in the page: GitHub shows front matter as a table.
_HIDDEN = {"index.md": ["navigation", "toc"], "source/": ["navigation", "toc"], "api.md": ["navigation"]}
_origins: dict[str, str] = {}  # page of the site -> file or folder of the repository
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc(?:set)?=\"?(?:https?:)?//[^>]*>"
    r"|<link\b(?=[^>]*rel=\"?(?:stylesheet|preconnect|icon|preload))[^>]*href=\"?(?:https?:)?//[^>]*>"
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds a page for each file and folder that a page links to, and for what those link to."""
    _origins.clear()
    tracked.cache_clear()
    folders.cache_clear()
    waiting = []
    for file in files.documentation_pages():
        _origins[file.src_uri] = f"docs/{file.src_uri}"
        waiting += _targets(f"docs/{file.src_uri}", file.content_string)
    waiting += [path for path in PAGES if path != "README.md"]
    while waiting:
        path = waiting.pop()
        page = page_of(path)
        if page is None or page in _origins or files.get_file_from_path(page):
            continue
        if not page.endswith(".md"):
            files.append(File.generated(config, page, content=(ROOT / path).read_bytes()))
            continue
        text = page_text(path)
        level = InclusionLevel.INCLUDED if path in PAGES else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, page, content=text, inclusion=level))
        _origins[page] = path
        waiting += _targets(path, text)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    origin = _origins[page.file.src_uri]
    room = "source/" if page.file.src_uri.startswith("source/") else page.file.src_uri
    if hidden := _HIDDEN.get(room):
        page.meta["hide"] = hidden

    def replacement(link: Link) -> str | None:
        path = _resolve(origin, link)
        target = path and page_of(path)
        if not path or not target:
            return None  # mkdocs says so if there is no such page
        anchor = f"#{link.anchor}" if link.anchor else ""
        href = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".") + anchor
        return f"{href}){_line_attribute(page, link, path)}"

    return replace_pictures(replace_links(_set_lists_apart(markdown), replacement))


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    _compare_with_github(page, html)
    html = re.sub(r"<td>(?=\d+-\d+)", '<td class="shape">', html)  # 784-512-10 in one line
    # Only here: the anchors of lines of code are not among those that mkdocs checks.
    return re.sub(r'data-line="(\d+)" href="([^"]*)"', r'href="\2#__codelineno-0-\1"', html)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    for match in _LOADED.finditer(output):
        log.warning(f"{page.file.src_uri} loads something from elsewhere: {match[0][:200]}")
    return output


def _set_lists_apart(markdown: str) -> str:
    """GitHub begins a list right below a paragraph or a table; Python-Markdown wants an empty line between them."""
    lines = markdown.splitlines()
    for token in reversed(_github.parse(markdown)):
        start = token.map[0] if token.map else 0
        above = lines[start - 1].strip() if start else ""
        begins = token.type.endswith("_list_open") and above
        if (begins or (token.type == "list_item_open" and above.startswith("|"))) and lines[start][0] != " ":
            lines.insert(start, "")
    return "\n".join(lines) + "\n"


def _compare_with_github(page: Page, html: str) -> None:
    """Lists and code that GitHub nests, and Python-Markdown does not, want an empty line above, or four spaces."""
    if ":::" in (page.markdown or "") or page.file.src_uri.startswith("source/"):
        return
    theirs = _github.render(page.markdown or "")
    for tag in ("li", "tr", "pre", "blockquote"):
        here, there = (len(re.findall(f"<{tag}[ >]", text)) for text in (html, theirs))
        if here != there:
            log.warning(f"{page.file.src_uri}: {here} <{tag}> on the site, {there} on GitHub")


def _targets(origin: str, text: str) -> list[str]:
    return [path for link in links(text) if (path := _resolve(origin, link))]


def _resolve(origin: str, link: Link) -> str | None:
    """The path from the root of the repository; None: a link to elsewhere, or within its own page."""
    if not link.is_relative:
        return None
    # A page of a folder links to what lies in it.
    folder = origin if (ROOT / origin).is_dir() else posixpath.dirname(origin)
    path = posixpath.normpath(posixpath.join(folder, link.path))
    return None if path.startswith("..") else path


def _line_attribute(page: Page, link: Link, path: str) -> str:
    """[`Engine::submit`](../engine.cpp) leads to the line that defines it."""
    name = link.text.strip("`").removeprefix("fused_mlp.")
    if not link.text.startswith("`") or not is_name(name, path) or not is_highlighted(path):
        return ""
    line = line_of(name, path, (ROOT / path).read_text())
    if line is None:
        log.warning(f"{page.file.src_uri}: '{name}' is not defined in {path}")
        return ""
    return f'{{ data-line="{line}" }}'
