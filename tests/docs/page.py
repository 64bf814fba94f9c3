# SPDX-License-Identifier: Apache-2.0
"""A page of Markdown as the runner sees it: fenced blocks, and the directives that say how they are run.

A directive is an HTML comment on a line of its own. Those directly above a block belong to it; those of the page stand
before its first block. README.md lists them. What cannot be understood is a `Mistake`, with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]

RUN = {"sh", "python"}
NEVER_RUN = {"text"}
# Code and data of other kinds: `from:` or `not run:` says what keeps it right.
OTHER = {
    *("json", "yaml", "toml", "ini", "promql", "proto", "html", "dockerfile", "makefile", "diff"),
    *("c", "cpp", "cuda", "csharp", "go", "java", "js", "kotlin", "ruby", "rust", "ts"),
}
PAGE_DIRECTIVES = {"server", "page", "setup", "folder", "packages"}
RUN_MODES = {"fails", "background", "alone"}

_COMMENT = re.compile(r"\s*<!--\s*(.*?)\s*-->\s*")


class Mistake(Exception):
    """What is wrong with a page, for its author: `docs/x.md:12: ...`."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # of the block's first line of code
    language: str
    code: str
    not_run: str = ""  # the reason
    source: str = ""  # the file that `from:` names
    mode: str = ""  # of RUN_MODES
    port: str = ""  # in the background: wait until this port accepts connections

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.not_run


@dataclass(frozen=True)
class Page:
    name: str
    blocks: tuple[Block, ...]
    server: str | None = None  # the options of `fused-mlp serve`; None: no server
    not_run: str = ""
    setups: tuple[str, ...] = ()
    folder: str = ""
    packages: bool = False  # those of tests/models/zoo/packages.py can be imported


def pages() -> list[str]:
    """The Markdown files whose blocks are run, from the root of the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found += sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
    return [path.relative_to(ROOT).as_posix() for path in found if "node_modules" not in path.parts]


def read_page(name: str, text: str | None = None) -> Page:
    lines = (text if text is not None else (ROOT / name).read_text()).splitlines()
    comments = _directives(name, lines)
    blocks = tuple(_blocks(name, lines, comments))
    first = blocks[0].line if blocks else len(lines) + 1
    server, not_run, folder, packages, setups = None, "", "", False, []
    for line, directive in sorted(comments.items()):  # what no block has taken
        word, _, value = (part.strip() for part in directive.partition(":"))
        place = f"{name}:{line}"
        if word not in PAGE_DIRECTIVES:
            raise Mistake(f"{place}: '{directive}' stands directly above no block")
        if line > first:
            raise Mistake(f"{place}: '{directive}' is for the whole page, and belongs above its first block")
        if word == "server":
            server = value
        elif directive == "packages":
            packages = True
        elif word == "page":
            what, _, not_run = (part.strip() for part in value.partition(":"))
            if what != "not run" or not not_run:
                raise Mistake(f"{place}: expected 'page: not run: REASON', got '{directive}'")
        elif not value or not (ROOT / value).exists():
            raise Mistake(f"{place}: '{directive}' names nothing that exists in the repository")
        elif word == "setup":
            setups.append(value)
        else:
            folder = value
    for block in blocks:
        if block.language in OTHER and not (not_run or block.not_run or block.source):
            wanted = "'<!-- from: FILE -->' or '<!-- not run: REASON -->'"
            raise Mistake(f"{block.place}: a block of {block.language} is not run: say {wanted} above it")
    return Page(name, blocks, server, not_run, tuple(setups), folder, packages)


def _directives(name: str, lines: list[str]) -> dict[int, str]:
    """By line, from 1. Pairs such as `<!-- figure: x -->` and `<!-- /figure -->` enclose generated text."""
    inside = _fenced("\n".join(lines))
    found = {
        number: match[1]
        for number, line in enumerate(lines, 1)
        if number not in inside and (match := _COMMENT.fullmatch(line))
    }
    closed = {comment[1:] for comment in found.values() if comment.startswith("/")}
    directives = {}
    for number, comment in found.items():
        word = comment.partition(":")[0].strip()
        if comment.startswith("/") or word in closed:
            continue
        if word not in PAGE_DIRECTIVES | {"run", "not run", "from"}:
            raise Mistake(f"{name}:{number}: unknown directive '{comment}'")
        directives[number] = comment
    return directives


def _fenced(text: str) -> set[int]:
    return {
        number
        for token in MarkdownIt().parse(text)
        if token.type == "fence" and token.map
        for number in range(token.map[0] + 1, token.map[1] + 1)
    }


def _blocks(name: str, lines: list[str], comments: dict[int, str]) -> Iterator[Block]:
    """Takes the directives of blocks out of `comments`."""
    for token in MarkdownIt().parse("\n".join(lines) + "\n"):
        if token.type not in ("fence", "code_block"):
            continue
        assert token.map
        fence = token.map[0] + 1
        place = f"{name}:{fence}"
        if token.type == "code_block":
            raise Mistake(f"{place}: a block by indentation has no language; write ```text")
        language = token.info.strip()
        if not language:
            raise Mistake(f"{place}: a block without language; output and trees are ```text")
        if language not in RUN | NEVER_RUN | OTHER:
            hint = "; write sh" if language in ("bash", "shell", "console", "zsh") else ""
            hint = "; write python" if language in ("py", "pycon", "python3") else hint
            raise Mistake(f"{place}: unknown language '{language}'{hint}")
        taken = {}
        line = fence - 1
        while line in comments:
            taken[line] = comments.pop(line)
            line -= 1
        yield _with_directives(Block(name, fence + 1, language, token.content), taken)


def _with_directives(block: Block, directives: dict[int, str]) -> Block:
    given = {"not_run": "", "source": "", "mode": "", "port": ""}
    for line, directive in directives.items():
        word, _, value = (part.strip() for part in directive.partition(":"))
        place = f"{block.page}:{line}"
        if word in PAGE_DIRECTIVES:
            raise Mistake(f"{place}: '{directive}' is for the whole page: leave an empty line below it")
        if word == "not run":
            if not value:
                raise Mistake(f"{place}: 'not run' without a reason")
            given["not_run"] = value
        elif word == "from":
            given["source"] = value
        else:
            given["mode"], _, given["port"] = value.partition(" ")
            if given["mode"] not in RUN_MODES or (given["port"] and given["mode"] != "background"):
                raise Mistake(f"{place}: unknown directive '{directive}'")
            if block.language not in RUN or (given["mode"] == "alone" and block.language != "python"):
                raise Mistake(f"{place}: '{directive}' above a block of {block.language}")
    return Block(block.page, block.line, block.language, block.code, **given)


def check_source(block: Block) -> None:
    """A block with `from:` is a run of whole lines of that file."""
    path = ROOT / block.source
    if not path.is_file():
        raise Mistake(f"{block.place}: from: {block.source} does not exist")
    if f"\n{block.code}" not in f"\n{path.read_text()}":
        raise Mistake(f"{block.place}: the block is no longer a part of {block.source}, byte for byte")
