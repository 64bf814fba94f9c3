# SPDX-License-Identifier: Apache-2.0
"""The links of a Markdown text: found outside code, and replaced. Knows nothing of the site."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^()\s]+)(\))")
# What a picture has for dark pages, and what it shows otherwise; both in one line or over several.
_PICTURE = re.compile(
    r'<picture>\s*<source[^>]*prefers-color-scheme: dark[^>]*srcset="(?P<dark>[^"]+)"[^>]*>\s*'
    r'<img\b(?P<before>[^>]*?)src="(?P<light>[^"]+)"(?P<after>[^>]*)>\s*</picture>',
    re.DOTALL,
)


@dataclass(frozen=True)
class Link:
    text: str
    target: str

    @property
    def path(self) -> str:
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        return self.target.partition("#")[2]

    @property
    def is_relative(self) -> bool:
        return bool(self.path) and not re.match(r"[a-z]+:|/", self.target)


def links(markdown: str) -> Iterator[Link]:
    found: list[Link] = []

    def collect(link: Link) -> None:
        found.append(link)

    replace_links(markdown, collect)
    yield from found


def replace_links(markdown: str, replacement: Callable[[Link], str | None]) -> str:
    """`replacement` gives what stands between the parentheses, and more after them; None: as it was."""
    covered = [match.span() for match in _FENCE.finditer(markdown)]
    fences = _blank(markdown, covered)
    covered += [match.span() for match in _CODE.finditer(fences)]

    def replace(match: re.Match[str]) -> str:
        if any(start <= match.start() < end for start, end in covered):
            return match[0]
        new = replacement(Link(match[1].lstrip("!")[1:-2], match[2]))
        return match[0] if new is None else f"{match[1]}{new}"

    return re.sub(_LINK, replace, markdown)


def replace_pictures(markdown: str) -> str:
    """A <picture> follows the reader's system; the site has a switch of its own, so it gets both images."""

    def both(match: re.Match[str]) -> str:
        attributes = f"{match['before']} {match['after'].rstrip('/')}"
        return "".join(f'<img{attributes} src="{match[kind]}#only-{kind}">' for kind in ("light", "dark"))

    return _PICTURE.sub(both, markdown)


def _blank(text: str, spans: list[tuple[int, int]]) -> str:
    for start, end in spans:
        text = text[:start] + " " * (end - start) + text[end:]
    return text
