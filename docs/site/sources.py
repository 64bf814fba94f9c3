# SPDX-License-Identifier: Apache-2.0
"""Files and folders of the repository that the documentation links to, as pages of the site: so it is whole without a
network, and a link to something that is gone fails the build. Paths are from the root of the repository."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[2]

# Pages of the site that lie elsewhere in the repository.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_HIGHLIGHTED_BYTES = 60_000  # beyond, a file is copied as it is: a long page of generated JSON is of no use


@cache
def tracked() -> frozenset[str]:
    """The files that belong to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return frozenset(path for path in listed.stdout.splitlines() if (ROOT / path).is_file())


@cache
def folders() -> frozenset[str]:
    return frozenset(
        parent.as_posix() for path in tracked() for parent in Path(path).parents if parent != Path()
    )


def page_of(path: str) -> str | None:
    """Where the site has it, from the root of docs/; None: there is no such file or folder."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/") and not path.startswith("docs/site/"):
        return path.removeprefix("docs/") if path in tracked() else None
    if path in folders():
        return f"source/{path}/index.md"
    if path not in tracked():
        return None
    return f"source/{path}.md" if is_highlighted(path) else f"source/{path}"


def is_highlighted(path: str) -> bool:
    file = ROOT / path
    if path.endswith(".md") or file.stat().st_size > _HIGHLIGHTED_BYTES:
        return False
    return b"\0" not in file.read_bytes()


def page_text(path: str) -> str:
    """The Markdown of the page of a folder, of a Markdown file or of a file that is highlighted."""
    if path in PAGES:
        return (ROOT / path).read_text()
    hidden = "---\nsearch:\n  exclude: true\n---\n\n"
    if path in folders():
        return f"{hidden}# `{path}/`\n\n{_listing(path)}\n"
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return hidden + text
    fence = "`" * 8
    return f'{hidden}# `{path}`\n\n{fence}{{ .{_language(path)} linenums="1" }}\n{text.rstrip()}\n{fence}\n'


def _listing(folder: str) -> str:
    inside = [path.removeprefix(f"{folder}/") for path in tracked() if path.startswith(f"{folder}/")]
    rooms = sorted({path.partition("/")[0] for path in inside if "/" in path})
    files = sorted(path for path in inside if "/" not in path)
    return "\n".join(f"* [`{name}`]({name})" for name in (*rooms, *files))


def _language(path: str) -> str:
    if path.endswith(".cu"):
        return "cuda"
    try:
        return str(get_lexer_for_filename(path).aliases[0])
    except ClassNotFound:
        return "text"
